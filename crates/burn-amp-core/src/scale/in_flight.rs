//! Steps in flight: launched on a device, not yet resolved.

use std::sync::{Arc, OnceLock};

/// Steps in flight; with more, the host waits: the device has enough to do then, and an error is not far.
pub(super) const MAX_IN_FLIGHT: usize = 16;

/// A step in flight: launched on a device, not yet resolved.
pub(crate) trait Pending: std::fmt::Debug + Send {
    /// Says whether its outcome is there.
    fn is_known(&self) -> bool;

    /// Counts the step, and moves its scale. Waits for the device.
    fn resolve(self: Box<Self>);
}

/// Says whether a step was applied; it is known at the latest after [`synchronize`](crate::ScaledOptimizer::synchronize). Clones agree.
#[derive(Clone, Debug, Default)]
pub struct Resolution(Arc<OnceLock<bool>>);

impl Resolution {
    /// The resolution of a step that is over.
    pub(crate) fn applied() -> Self {
        Self(Arc::new(true.into()))
    }

    pub(crate) fn resolve(&self, is_applied: bool) {
        let _first_holds = self.0.set(is_applied);
    }

    /// Says whether the step was applied; none while it is in flight. Does not wait.
    pub fn is_applied(&self) -> Option<bool> {
        self.0.get().copied()
    }
}

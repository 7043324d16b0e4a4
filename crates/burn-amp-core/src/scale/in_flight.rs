//! Steps in flight, in their order, and the scale as the device moves it meanwhile. They belong to the scale, so that no optimizer that is
//! dropped or cloned takes them along. Knows no schedule.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use crate::{lock::locked, scale::device_step::DeviceStep};

/// Steps in flight; with more, the host waits: the device has enough to do then, and an error is not far.
const MAX_IN_FLIGHT: usize = 16;

/// A step in flight: launched on a device, not yet resolved.
pub(crate) trait Pending: std::fmt::Debug + Send {
    /// Whether its outcome is there.
    fn is_known(&self) -> bool;

    /// Counts the step, and moves its scale. Waits for the device.
    fn resolve(self: Box<Self>);
}

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    steps: Mutex<VecDeque<Box<dyn Pending>>>,
    device_step: Mutex<Option<Arc<DeviceStep>>>,
}

impl InFlight {
    pub(crate) fn push(&self, step: Box<dyn Pending>) {
        locked(&self.steps).push_back(step);
    }

    /// Resolves steps in their order: all of them if it `waits`, else those whose outcome is there, and those that are more than
    /// [`MAX_IN_FLIGHT`].
    pub(crate) fn resolve(&self, waits: bool) {
        // Held meanwhile, so that they are in their order whoever asks.
        let mut steps = locked(&self.steps);
        if steps.is_empty() {
            return;
        }
        // The device is ahead of what ends here.
        let device_step = self.device_step();
        loop {
            let waits = waits || steps.len() > MAX_IN_FLIGHT;
            match steps.pop_front_if(|step| waits || step.is_known()) {
                Some(step) => step.resolve(),
                None => break,
            }
        }
        self.set_device_step(device_step);
    }

    /// The scale as the device moves it; none where the host does, or its optimizer is gone.
    pub(crate) fn device_step(&self) -> Option<Arc<DeviceStep>> {
        locked(&self.device_step)
            .clone()
            .filter(|device_step| device_step.has_owner())
    }

    /// From now on scopes take the scale from the device, or no longer.
    pub(crate) fn set_device_step(&self, device_step: Option<Arc<DeviceStep>>) {
        *locked(&self.device_step) = device_step;
    }
}

/// Whether a step was applied, known at the latest after [`synchronize`](crate::ScaledOptimizer::synchronize). Clones agree.
#[derive(Clone, Debug, Default)]
pub struct Resolution(Arc<OnceLock<bool>>);

impl Resolution {
    /// That of a step that is over.
    pub(crate) fn applied() -> Self {
        Self(Arc::new(true.into()))
    }

    pub(crate) fn resolve(&self, is_applied: bool) {
        let _first_holds = self.0.set(is_applied);
    }

    /// Whether the step was applied; none while it is in flight. Does not wait.
    pub fn is_applied(&self) -> Option<bool> {
        self.0.get().copied()
    }
}

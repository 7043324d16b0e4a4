//! Whether a loss was scaled by hand since the last `update`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Knows whether a loss was scaled since the last `update`, and warns, once, of plain gradients after a loss that was scaled.
///
/// Copies of a scaler share what they have seen until the next `update`: workers scale their losses with copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossWatch {
    pub(super) scaled: Arc<AtomicBool>,
    warned_of_plain: bool,
}

impl LossWatch {
    /// A loss is scaled.
    pub(super) fn see(&self) {
        self.scaled.store(true, Ordering::Relaxed);
    }

    /// Says whether a loss was scaled since the last `update`.
    pub(super) fn is_scaled(&self) -> bool {
        self.scaled.load(Ordering::Relaxed)
    }

    /// Plain gradients come in, after a loss was scaled.
    pub(crate) fn check_plain(&mut self) {
        if self.is_scaled() && !std::mem::replace(&mut self.warned_of_plain, true) {
            warn!(
                "a loss was scaled since the last `update`, but these gradients are plain ones, which are taken as unscaled. If they \
                 are that loss's, they are too large by the loss scale: write `optim.backward(loss, &model)`, or \
                 `scaler.scaled(grads)` after `scaler.scale(loss).backward()`"
            );
        }
    }

    /// Starts a new iteration: no loss was scaled in it yet.
    pub(super) fn start(&mut self) {
        self.scaled = Arc::default();
    }
}

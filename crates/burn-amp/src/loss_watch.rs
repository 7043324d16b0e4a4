use burn::tensor::Tensor;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{error::short, gradient_status::GradientStatus};

const MAX_LOSSES: usize = 256;

/// Notices gradients that are all zero though the loss is not, and says so once.
///
/// Keeps the losses of the iteration: their values cost a read, which is made only when it matters.
#[derive(Debug, Default)]
pub(crate) struct UnderflowWatch {
    losses: Mutex<Vec<Tensor<1>>>,
    warned: bool,
}

impl UnderflowWatch {
    pub(crate) fn see(&self, losses: Vec<Tensor<1>>) {
        let mut kept = self.losses();
        kept.extend(losses);
        // Losses that are scaled and never stepped on must not pile up.
        let surplus = kept.len().saturating_sub(MAX_LOSSES);
        kept.drain(..surplus);
    }

    /// Warns, the first time, if gradients are all zero and a loss that was seen is not, or a gradient that came to a scope
    /// (`arrived`). Where neither was seen (losses that workers have scaled, each with a copy of the scaler), nothing is known.
    ///
    /// Waits for the device only in that case.
    pub(crate) fn check(
        &mut self,
        status: &GradientStatus,
        scale: f32,
        arrived: impl FnOnce() -> bool,
    ) {
        if self.warned || !status.is_all_zero() || (are_zero(&self.losses()) && !arrived()) {
            return;
        }
        self.warned = true;
        let scale = short(scale.into());
        log::warn!(
            "all {} gradient values are zero at loss scale {scale} although the loss is not: they underflow in half \
             precision (or the loss does not depend on the parameters). A larger `init_scale` or a shorter \
             `growth_interval` helps against underflow",
            status.elements()
        );
    }

    /// Forgets the losses of the iteration, which has ended.
    pub(crate) fn forget(&self) {
        self.losses().clear();
    }

    fn losses(&self) -> MutexGuard<'_, Vec<Tensor<1>>> {
        // A panic elsewhere cannot leave a `Vec` of tensors half written.
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for UnderflowWatch {
    fn clone(&self) -> Self {
        Self {
            losses: Mutex::new(self.losses().clone()),
            warned: self.warned,
        }
    }
}

/// Whether all values of the losses are zero.
fn are_zero(losses: &[Tensor<1>]) -> bool {
    losses
        .iter()
        .all(|loss| loss.to_data().iter::<f64>().all(|value| value == 0.0))
}

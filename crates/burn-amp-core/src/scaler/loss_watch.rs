//! What the losses that were scaled say about the gradients.

use burn::tensor::Tensor;
use std::sync::{Arc, Mutex};

use crate::{gradients::status::GradientStatus, lock::locked};

/// Losses that are kept until the step: those of losses that are scaled and never stepped on must not pile up.
const MAX_LOSSES: usize = 8;

/// Knows whether a loss was scaled since the last `update`, and warns, once each, of gradients that are all zero though the
/// loss is not, of finite gradients under a loss that is not, and of plain gradients after a loss that was scaled.
///
/// Copies of a scaler share what they have seen until the next `update`: workers scale their losses with copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossWatch {
    pub(crate) seen: SharedLosses,
    steps: u64,
    warned_of_loss: bool,
    warned_of_plain: bool,
}

pub(crate) type SharedLosses = Arc<Mutex<ScaledLosses>>;

/// Losses that were scaled, and not looked at.
#[derive(Debug, Default)]
pub(crate) struct ScaledLosses {
    scaled: bool,
    losses: Vec<Tensor<1>>,
}

impl LossWatch {
    /// Losses are scaled: what they were before.
    pub(crate) fn see(&self, losses: Vec<Tensor<1>>) {
        let mut seen = locked(&self.seen);
        seen.scaled = true;
        seen.losses.extend(losses);
        let surplus = seen.losses.len().saturating_sub(MAX_LOSSES);
        seen.losses.drain(..surplus);
    }

    /// Whether a loss was scaled since the last `update`.
    pub(crate) fn is_scaled(&self) -> bool {
        locked(&self.seen).scaled
    }

    /// Looks at the gradients of a step. `arrived` says whether a gradient that is not zero came to a scope.
    ///
    /// Waits for the device only where it is to find out whether to warn: if all gradients are zero, and at the first, second,
    /// fourth, eighth step and so on.
    pub(crate) fn check(&mut self, status: &GradientStatus) {
        self.steps += 1;
        if !self.warned_of_loss
            && self.steps.is_power_of_two()
            && status.elements() > 0
            && !status.has_overflow()
            && self.any(|loss| !loss.is_finite())
        {
            self.warned_of_loss = true;
            warn!(
                "the loss is infinite or NaN, but all gradients are finite: the step is taken, as in PyTorch. A part of the loss \
                 that is not finite does not depend on the parameters, or its gradient is lost on the way"
            );
        }
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

    /// Forgets the losses, of which a step has made use.
    pub(crate) fn forget(&self) {
        locked(&self.seen).losses.clear();
    }

    /// Starts a new iteration: no loss was scaled in it yet.
    pub(crate) fn start(&mut self) {
        self.seen = Arc::default();
    }

    pub(crate) fn any(&self, is: impl Fn(f64) -> bool) -> bool {
        let losses = locked(&self.seen).losses.clone();
        let is = |loss: &Tensor<1>| loss.to_data().iter::<f64>().any(&is);
        losses.iter().any(is)
    }
}

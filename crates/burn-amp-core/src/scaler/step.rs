//! Gradients that are discarded or dropped, and running statistics beside a step: of a [`ScaledOptimizer`](crate::ScaledOptimizer) and a `GradScaler`.

use burn::module::Module;

use super::{Joint, Scaler};
use crate::scale::{account::Purpose, loss_scale::StepOutcome};
use crate::{error::AmpError, gradients::StepGradients, values::Parameter};

/// The failure of a call.
pub(crate) struct Failed {
    pub(crate) error: AmpError,
    /// Its outcome nevertheless; none of a call that was refused.
    pub(crate) outcome: Option<StepOutcome>,
}

/// A call that was refused.
impl From<AmpError> for Failed {
    fn from(error: AmpError) -> Self {
        Self {
            error,
            outcome: None,
        }
    }
}

impl Scaler {
    /// Counts gradients that were unscaled and dropped: as one iteration.
    pub(crate) fn resolve_dropped(&mut self) -> Result<(), AmpError> {
        if self.dropped.is_empty() {
            return Ok(());
        }
        let mut joint = Joint::default();
        let counted = joint.count_dropped(self);
        if counted.is_ok() {
            joint.advance(self, Purpose::Dropped);
        }
        if counted.is_err() || joint.evidence().is_some() {
            self.watch.start();
        }
        self.live.show(self.place.id, false);
        counted
    }

    /// Throws gradients away, as a step that is not made: those that were tested move the scale, and it `ends` the iteration of their loss.
    pub(crate) fn discard_at_once(
        &mut self,
        grads: StepGradients,
        ends: bool,
    ) -> Result<(), AmpError> {
        let mut joint = Joint::default();
        let thrown = joint.discard(self, grads);
        joint.advance(self, Purpose::Discarded);
        if ends {
            self.watch.start();
        }
        thrown
    }
}

/// Keeps the running statistics of a module, before a step or a micro-batch: the values in it that are not trained.
pub fn keep_statistics<M: Module>(scaler: &mut Scaler, module: &M, found: Vec<Parameter>) {
    let found = match scaler.is_enabled() {
        true => found,
        false => Vec::new(),
    };
    scaler.buffers.before_step(module, found);
}

/// Repairs the statistics after it. Waits for the device only where something was skipped.
pub fn repair_statistics<M: Module>(
    scaler: &mut Scaler,
    module: &M,
    outcome: Option<StepOutcome>,
    accepts_micro_batches: bool,
) {
    let overflows = scaler.live.overflows();
    (scaler.buffers).after_step(module, outcome, accepts_micro_batches, false, overflows);
}

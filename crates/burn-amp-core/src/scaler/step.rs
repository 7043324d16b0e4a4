//! Steps that are iterations by themselves: those of a [`ScaledOptimizer`](crate::ScaledOptimizer).

use super::{Joint, Scaler};
use crate::{error::AmpError, gradients::StepGradients, scale::loss_scale::StepOutcome};

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
            joint.advance(self);
        }
        if counted.is_err() || joint.seen().is_some() {
            self.watch.start();
        }
        self.live.show(self.id(), false);
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
        joint.advance(self);
        if ends {
            self.watch.start();
        }
        thrown
    }
}

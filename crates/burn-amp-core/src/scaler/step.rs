//! Steps that are iterations by themselves: those of a [`ScaledOptimizer`](crate::ScaledOptimizer).

use burn::module::Module;
use std::sync::Arc;

use super::{Joint, Scaler};
use crate::scale::{finding::Finding, journal::Caller};
use crate::scale::{loss_scale::StepOutcome, status::GradientStatus};
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
    /// Ends a step that is an iteration by itself: counts it, and moves the scale.
    pub(crate) fn end_step(
        &mut self,
        found: &Finding,
        status: Option<Arc<GradientStatus>>,
    ) -> Result<StepOutcome, AmpError> {
        self.look_at(found, status.as_deref());
        if self.amp.is_none() {
            self.watch.start();
        }
        (self.live).end(self.id(), found, status, Caller::here())
    }

    /// Begins a step, or a micro-batch, of a module in which these values are not trained.
    #[doc(hidden)]
    pub fn begin_step<M: Module>(&mut self, module: &M, found: Vec<Parameter>) {
        let found = match self.is_enabled() {
            true => found,
            false => Vec::new(),
        };
        self.buffers.before_step(module, found);
    }

    /// Ends it. Waits for the device only where something was skipped.
    #[doc(hidden)]
    pub fn leave_step<M: Module>(
        &mut self,
        module: &M,
        outcome: Option<StepOutcome>,
        accepts_micro_batches: bool,
    ) {
        let overflows = self.live.overflows();
        (self.buffers).after_step(module, outcome, accepts_micro_batches, false, overflows);
    }

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
        if counted.is_err() || joint.evidence().is_some() {
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

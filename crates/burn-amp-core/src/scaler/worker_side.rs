//! The two sides of a scaler whose steps are decided on another thread: that which scales losses, and that which moves the scale.

use burn::module::Module;
use std::sync::{Arc, atomic::AtomicBool};

use super::Scaler;
use crate::scale::{account::Call, live_scale::ScopesLeft, loss_scale::LossScale};
use crate::scaler::loss_watch::LossWatch;
use crate::{
    error::AmpError, gradients::StepGradients, scale::loss_scale::StepOutcome, values::Parameter,
};

/// The records of an iteration by the side that scales.
pub struct HandedOver {
    scopes: ScopesLeft,
    losses: Arc<AtomicBool>,
}

#[doc(hidden)]
impl Scaler {
    /// Takes out what was recorded since the last step.
    pub fn hand_over(&mut self) -> HandedOver {
        HandedOver {
            scopes: self.live.hand_over(),
            losses: std::mem::take(&mut self.watch.scaled),
        }
    }

    /// Decides on what the other side has recorded.
    pub fn take_over(&mut self, handed: HandedOver) {
        self.live.take_over(handed.scopes);
        self.watch.scaled = handed.losses;
    }

    /// The side that moves the scale: one of its own, in the same state, which multiplies nothing.
    pub fn for_worker(&self) -> Self {
        let (live, amp) = match self.amp.as_ref().map(|amp| amp.for_worker()) {
            Some(amp) => (amp.live().clone(), Some(amp)),
            None => (Arc::new(self.live.detached()), None),
        };
        Self {
            watch: LossWatch::default(),
            ..self.with_scale(live, amp)
        }
    }

    /// Scales the next losses as far as the other side has come, by a call of `step` or by something else.
    pub fn follow(&mut self, reached: &Self, is_call: bool) {
        let account = reached.account(|account| account.clone());
        let call = account.last.clone();
        self.account(|own| *own = account);
        self.live.follow(&reached.live);
        match is_call {
            true => self.enter(call),
            false => self.live.show(self.id(), true),
        }
    }

    /// Follows a setting: what the last call of `step` has done stays.
    pub fn follow_setting(&mut self, reached: &Self) {
        let last: Call = self.account(|account| account.last.clone());
        self.follow(reached, false);
        self.account(|account| account.last = last);
    }

    /// Takes over which regions are open on the other side: the step that comes moves them.
    pub fn take_opened_regions(&self, other: &Self) {
        let other = other.live.regions().lock().clone();
        self.live.regions().replace(|own| own.open_as(&other));
    }

    /// Says whether other optimizers move the scale, too.
    pub fn is_shared(&self) -> bool {
        self.live.is_shared(None)
    }

    /// Gradients that were tested come to a step.
    pub fn take_tested(&self, grads: &StepGradients) {
        if let StepGradients::Unscaled(grads) = grads {
            grads.count(&self.dropped);
        }
    }

    /// Begins a step, or a micro-batch, of a module in which these values are not trained.
    pub fn begin_step<M: Module>(&mut self, module: &M, found: Vec<Parameter>) {
        let found = match self.is_enabled() {
            true => found,
            false => Vec::new(),
        };
        self.buffers.before_step(module, found);
    }

    /// Ends it. Waits for the device only where something was skipped.
    pub fn leave_step<M: Module>(
        &mut self,
        module: &M,
        outcome: Option<StepOutcome>,
        accepts_micro_batches: bool,
    ) {
        let overflows = self.live.overflows();
        (self.buffers).after_step(module, outcome, accepts_micro_batches, overflows);
    }

    /// The other side has made an update of `module`. `is_behind` if more forward passes have been made than it knows of.
    pub fn leave_update<M: Module>(&mut self, module: &M, is_behind: bool) {
        self.buffers.is_behind = is_behind;
        let outcome = self.last_outcome();
        self.leave_step(module, outcome, false);
    }

    /// Forgets which buffers were good: another state was loaded.
    pub fn forget_buffers(&mut self) {
        self.buffers.forget();
    }

    /// Ends an iteration with a scale of the caller's choice, where its outcome has moved the scale that was `before`. The growth
    /// tracker is that of before, too.
    pub fn replace_update(&mut self, before: LossScale, scale: f64) -> Result<(), AmpError> {
        self.live
            .set_schedule(before.with_scale("loss_scale", scale)?);
        self.account(|account| account.end_row());
        Ok(())
    }
}

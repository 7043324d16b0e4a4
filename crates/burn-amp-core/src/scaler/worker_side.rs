//! The two sides of a scaler whose steps are decided on another thread: that which scales losses, and that which moves the scale.

use burn::module::Module;
use std::sync::{Arc, atomic::AtomicBool};

use super::GradScaler;
use crate::scaler::loss_watch::LossWatch;
use crate::{
    error::AmpError, gradients::StepGradients, scale::live_scale::ScopesLeft,
    scale::loss_scale::LossScale, scaler::ledger::Ledger,
};

/// What the side that scales has recorded in an iteration.
pub struct HandedOver {
    scopes: ScopesLeft,
    losses: Arc<AtomicBool>,
}

#[doc(hidden)]
impl GradScaler {
    /// Takes out what was recorded since the last step.
    pub fn hand_over(&mut self) -> HandedOver {
        HandedOver {
            scopes: self.live().hand_over(),
            losses: std::mem::take(&mut self.watch.scaled),
        }
    }

    /// Decides on what the other side has recorded.
    pub fn take_over(&mut self, handed: HandedOver) {
        self.live().take_over(handed.scopes);
        self.watch.scaled = handed.losses;
    }

    /// The side that moves the scale: one of its own, in the same state, which multiplies nothing.
    pub fn for_worker(&self) -> Self {
        let account = self.account().clone();
        Self {
            watch: LossWatch::default(),
            ledger: match self.precision() {
                Some(amp) => Ledger::of(&amp.for_worker(), account),
                None => self.ledger.detached(),
            },
            ..self.clone()
        }
    }

    /// A copy with a scale that it shares with nobody: what the scaler has come to.
    pub fn detached(&self) -> Self {
        Self {
            ledger: self.ledger.detached(),
            ..self.clone()
        }
    }

    /// Scales the next losses as far as the other side has come, by a call of `step` or by something else.
    pub fn follow(&mut self, reached: &Self, is_call: bool) {
        *self.account() = reached.account().clone();
        self.live().follow(reached.live());
        self.ledger.show(is_call.then(|| self.loss_scale()));
    }

    /// As [`follow`](Self::follow), by a setting: what the last call of `step` has done stays.
    pub fn follow_setting(&mut self, reached: &Self) {
        let last = self.account().clone();
        self.follow(reached, false);
        let mut account = self.account();
        (account.outcome, account.status, account.is_step) =
            (last.outcome, last.status, last.is_step);
    }

    /// Takes over which regions are open on the other side: the step that comes moves them.
    pub fn take_opened_regions(&self, other: &Self) {
        let other = other.live().regions().lock().clone();
        self.live().regions().lock().open_as(&other);
    }

    /// Whether other optimizers move the scale, too.
    pub fn is_shared(&self) -> bool {
        self.live().is_shared()
    }

    /// Gradients that were tested come to a step.
    pub fn take_tested(&self, grads: &StepGradients) {
        if let StepGradients::Unscaled(grads) = grads {
            self.pending.take(&grads.pending);
        }
    }

    /// The other side has made an update of `module`. `is_behind` if more forward passes have been made than it knows of.
    pub fn leave_update<M: Module>(&mut self, module: &M, is_behind: bool) {
        self.buffers.is_behind = is_behind;
        self.leave_step(module, false);
    }

    /// Forgets which buffers were good: another state was loaded.
    pub fn forget_buffers(&mut self) {
        self.buffers.forget();
    }

    /// Ends an iteration with a scale of the caller's choice, where its outcome has moved the scale that was `before`. The growth
    /// tracker is that of before, too.
    pub fn replace_update(&mut self, before: LossScale, scale: f64) -> Result<(), AmpError> {
        self.live()
            .set_schedule(before.with_scale("loss_scale", scale)?);
        self.account().end_row();
        Ok(())
    }
}

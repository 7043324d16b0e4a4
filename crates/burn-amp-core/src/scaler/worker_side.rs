//! The two sides of a scaler whose steps are decided on another thread: that which scales losses, and that which learns.

use burn::module::Module;
use std::collections::BTreeMap;

use super::{GradScaler, Scale};
use crate::{
    error::AmpError,
    gradients::StepGradients,
    journal::account::Account,
    scale::live_scale::{LiveScale, ScopesLeft},
    scale::loss_scale::LossScale,
    scale::parts::PartState,
    scaler::loss_watch::{LossWatch, Losses},
};

/// Where a scaler is after a step: what the other side is to know of it.
#[derive(Clone, Debug)]
pub struct Reached {
    pub(crate) schedule: LossScale,
    parts: BTreeMap<String, PartState>,
    account: Account,
}

/// What the side that scales has noted in an iteration.
pub struct HandedOver {
    passage: ScopesLeft,
    losses: Losses,
}

impl GradScaler {
    /// Takes out what was noted since the last step.
    pub fn hand_over(&mut self) -> HandedOver {
        HandedOver {
            passage: self.live().hand_over(),
            losses: self.watch.hand_over(),
        }
    }

    /// Decides on what the other side has noted.
    pub fn take_over(&mut self, noted: HandedOver) {
        self.live().take_over(noted.passage);
        self.watch.take_over(noted.losses);
    }

    /// The side that learns: it moves a scale of its own, in the same state, which multiplies nothing.
    #[doc(hidden)]
    pub fn for_worker(&self) -> Self {
        let account = || self.account().clone();
        Self {
            watch: LossWatch::default(),
            scale: match self.precision() {
                Some(amp) => Scale::of(&amp.for_worker(), account()),
                None => self.scale.clone(),
            },
            ..self.clone()
        }
    }

    /// A copy with a scale that it shares with nobody.
    #[doc(hidden)]
    pub fn detached(&self) -> Self {
        let live = LiveScale::of_scaler(self.schedule());
        // The clone below locks it, too.
        let account = self.account().clone();
        Self {
            scale: Scale::own(live, account),
            ..self.clone()
        }
    }

    /// Where the scaler has come to.
    pub fn reached(&self) -> Reached {
        Reached {
            schedule: self.schedule(),
            parts: self.live().parts().states(),
            account: self.account().clone(),
        }
    }

    /// Scales the next losses as far as the side that learns has come, by a call of `step` or by something else.
    pub fn follow(&mut self, reached: Reached, is_call: bool) {
        *self.account() = reached.account;
        self.live().follow(reached.schedule, &reached.parts);
        self.ledger().show(is_call.then(|| self.loss_scale()));
    }

    /// Whether other optimizers move the scale, too.
    #[doc(hidden)]
    pub fn is_shared(&self) -> bool {
        self.live().is_shared()
    }

    /// Gradients that were tested come to a step.
    #[doc(hidden)]
    pub fn take_tested(&self, grads: &StepGradients) {
        if let StepGradients::Unscaled(grads) = grads {
            self.unsettled.take(&grads.verdicts);
        }
    }

    /// The other side has made an update of `module`. `is_behind` if more forward passes have been made than it knows of.
    #[doc(hidden)]
    pub fn leave_update<M: Module>(&mut self, module: &M, is_behind: bool) {
        self.buffers.is_behind = is_behind;
        self.leave_step(module, false);
    }

    /// Forgets which buffers were good: another state was loaded.
    #[doc(hidden)]
    pub fn forget_buffers(&mut self) {
        self.buffers.forget();
    }

    /// Ends an iteration with a scale of the caller's choice, where its outcome has moved the scale that was `before`. The growth
    /// tracker is that of before, too.
    #[doc(hidden)]
    pub fn replace_update(&mut self, before: LossScale, scale: f64) -> Result<(), AmpError> {
        self.live()
            .set_schedule(before.with_scale("loss_scale", scale)?);
        self.account().counters.consecutive_skips = 0;
        Ok(())
    }
}

//! [`Joint`]: steps that move the loss scale together.

use std::mem::take;

use super::Scaler;
use crate::gradients::{StepGradients, UnscaledGradients, entries::ids_of};
use crate::scale::account::{Call, Purpose, log_skip};
use crate::scale::finding::{Effect, Finding, Shown};
use crate::scale::{journal::Caller, loss_scale::Evidence};
use crate::{error::AmpError, scale::loss_scale::StepOutcome};

/// The evidence of several gradients together, which moves the loss scale when their iteration ends.
#[derive(Clone, Debug, Default)]
pub struct Joint {
    shown: Shown,
    /// The number of steps among them, and their outcome, those that are skipped for another reason than the loss scale included.
    steps: usize,
    outcome: Option<StepOutcome>,
}

impl Joint {
    /// An iteration that has shown this so far.
    pub(crate) fn begun(evidence: Option<Evidence>) -> Self {
        let shown = Shown {
            evidence,
            ..Shown::default()
        };
        Self {
            shown,
            ..Self::default()
        }
    }

    /// The evidence so far.
    pub(crate) fn evidence(&self) -> Option<Evidence> {
        self.shown.evidence
    }

    /// Counts gradients. After one skip too many in a row, nothing has been shown.
    fn count(
        &mut self,
        scaler: &mut Scaler,
        purpose: Purpose,
        found: &Finding,
    ) -> Result<(), AmpError> {
        let counted = (scaler.live).count(scaler.place.id, purpose, found, &mut self.shown);
        if counted.is_err() && found.effect() != Effect::Spares {
            scaler.watch.start();
            *self = Self::default();
        }
        counted
    }

    /// Counts a step of gradients that were `accepted`. It is a call of the program's, unless they are only observed.
    pub fn step(
        &mut self,
        scaler: &mut Scaler,
        grads: &UnscaledGradients,
        accepted: Result<(), AmpError>,
        is_call: bool,
    ) -> Result<StepOutcome, AmpError> {
        grads.count(&scaler.dropped);
        let caller = is_call.then(Caller::here);
        if let Err(error) = accepted {
            (scaler.live).enter(scaler.place.id, Call::default(), caller);
            return Err(error);
        }
        let status = grads.known_status();
        scaler.look_at(&grads.finding, status.as_deref());
        let outcome = grads.finding.outcome();
        let counted = self.count(scaler, Purpose::Step, &grads.finding);
        let call = Call {
            outcome: Some(outcome),
            status,
            is_step: true,
        };
        (scaler.live).enter(scaler.place.id, call, caller);
        self.steps += 1;
        counted?;
        if self.outcome != Some(StepOutcome::Skipped) {
            self.outcome = Some(outcome);
        }
        Ok(outcome)
    }

    /// Throws gradients away. Those that were tested are counted, if anything is tested here.
    pub fn discard(&mut self, scaler: &mut Scaler, grads: StepGradients) -> Result<(), AmpError> {
        let tested = match grads {
            StepGradients::Unscaled(grads) => Some(grads),
            _ => None,
        };
        if (tested.as_ref()).is_none_or(|grads| grads.finding.skips()) {
            scaler.buffers.suspect();
        }
        // Of untested gradients nobody knows the parameters: all that came are theirs.
        let ids = tested.as_ref().map(|grads| ids_of(&grads.entries));
        scaler.live.events.discard(ids.as_deref());
        let mut status = None;
        let is_enabled = scaler.is_enabled();
        let counted = match tested.filter(|_| is_enabled) {
            Some(grads) => {
                grads.count(&scaler.dropped);
                status = grads.known_status();
                self.count(scaler, Purpose::Discarded, &grads.finding)
            }
            None => {
                scaler.account(|account| account.record_untested(is_enabled));
                Ok(())
            }
        };
        scaler.enter(Call::of(StepOutcome::Dropped, status));
        counted
    }

    /// Counts gradients that were unscaled and dropped: they were discarded.
    pub(super) fn count_dropped(&mut self, scaler: &mut Scaler) -> Result<(), AmpError> {
        for (found, ids) in scaler.dropped.take() {
            scaler.live.events.discard(Some(&ids));
            self.count(scaler, Purpose::Dropped, &found)?;
        }
        Ok(())
    }

    /// Moves the scale by what was shown, if it was something.
    pub(super) fn advance(&self, scaler: &Scaler, purpose: Purpose) {
        if self.shown.evidence.is_some() {
            (scaler.live).advance(scaler.place.id, purpose, &self.shown);
        }
    }

    /// Ends the iteration, with gradients that were dropped in it: moves the scale, unless the program has set another one than that `before`. All
    /// its steps are one for an observer.
    pub fn end(
        &mut self,
        scaler: &mut Scaler,
        before: Option<f32>,
    ) -> Result<Option<StepOutcome>, AmpError> {
        let outcome = self.outcome;
        let counted = self.count_dropped(scaler);
        let ended = take(self);
        scaler.watch.start();
        match before {
            None => ended.advance(scaler, Purpose::Step),
            Some(before) => {
                let Shown {
                    evidence,
                    overflows,
                } = &ended.shown;
                scaler.live.end_regions(*evidence);
                if scaler.is_enabled() && *evidence == Some(Evidence::Overflow) {
                    let scales = [before, scaler.schedule().scale()];
                    log_skip(scales, Purpose::Step, overflows);
                }
            }
        }
        scaler.live.enter_end(scaler.place.id, ended.steps);
        let error = counted.as_ref().err();
        if outcome.is_some() || error.is_some() {
            scaler.notify(outcome, error);
        }
        counted.map(|()| ended.evidence().map(Evidence::outcome))
    }
}

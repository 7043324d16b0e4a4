//! Steps that are iterations by themselves: those of a [`ScaledOptimizer`](crate::ScaledOptimizer).

use super::Scaler;
use crate::error::AmpError;
use crate::gradients::entries::ids_of;
use crate::gradients::{StepGradients, UnscaledGradients};
use crate::scale::account::{Call, Purpose};
use crate::scale::{finding::Finding, loss_scale::Evidence, loss_scale::StepOutcome};

/// The evidence of several gradients together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Joint {
    pub(crate) seen: Option<Evidence>,
    /// The first parameter of each overflow.
    pub(crate) overflows: Vec<String>,
}

impl Joint {
    pub(crate) fn add(&mut self, found: &Finding) {
        if let Some(seen) = found.evidence() {
            self.overflows.extend(found.overflow().cloned());
            self.seen = Some(seen.after(self.seen));
        }
    }
}

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
        let counted = self.count_dropped(|scaler, found| {
            let is_first = joint.seen != Some(Evidence::Overflow);
            (scaler.live).count(scaler.id(), Purpose::Dropped, found, is_first)?;
            joint.add(found);
            Ok(())
        });
        if let (Ok(()), Some(seen)) = (&counted, joint.seen) {
            (self.live).advance(self.id(), seen, Purpose::Step, &joint.overflows);
        }
        if counted.is_err() || joint.seen.is_some() {
            self.watch.start();
        }
        self.live.show(self.id(), false);
        counted
    }

    /// Has gradients that were unscaled and dropped counted.
    pub(crate) fn count_dropped(
        &mut self,
        mut count: impl FnMut(&mut Self, &Finding) -> Result<(), AmpError>,
    ) -> Result<(), AmpError> {
        for found in self.dropped.take() {
            if found.overflow().is_some() {
                self.buffers.suspect();
            }
            count(self, &found)?;
        }
        Ok(())
    }

    /// Throws gradients away. Those that were tested are counted by `count`, if anything is tested here.
    pub(crate) fn throw_away(
        &mut self,
        grads: StepGradients,
        count: impl FnOnce(&mut Self, &Finding) -> Result<(), AmpError>,
    ) -> Result<(), AmpError> {
        let tested = match grads {
            StepGradients::Unscaled(grads) => Some(grads),
            _ => None,
        };
        if (tested.as_ref()).is_none_or(UnscaledGradients::skips) {
            self.buffers.suspect();
        }
        // Of untested gradients nobody knows the parameters: all that came are theirs.
        let (until, ids) = match &tested {
            Some(grads) => (self.live.tested(), ids_of(&grads.entries)),
            None => (u64::MAX, Vec::new()),
        };
        self.live.events.discard(until, &ids);
        let mut status = None;
        let is_enabled = self.is_enabled();
        let counted = match tested.filter(|_| is_enabled) {
            Some(grads) => {
                grads.count(&self.dropped);
                status = grads.known_status();
                count(self, &grads.finding)
            }
            None => {
                self.account(|account| account.record_untested(is_enabled));
                Ok(())
            }
        };
        self.enter(Call::of(StepOutcome::Dropped, status));
        counted
    }

    /// Throws gradients away, as a step that is not made: those that were tested move the scale, and it `ends` the iteration of their loss.
    pub(crate) fn discard_at_once(
        &mut self,
        grads: StepGradients,
        ends: bool,
    ) -> Result<(), AmpError> {
        let thrown = self.throw_away(grads, |scaler, found| {
            (scaler.live).count_alone(scaler.id(), Purpose::Discarded, found)
        });
        if ends {
            self.watch.start();
        }
        thrown
    }
}

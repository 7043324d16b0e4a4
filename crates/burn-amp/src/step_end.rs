//! The end of a step, whoever has decided it: its optimizer's account counts and logs it, and the scale moves. Knows no tensors.

use std::sync::{MutexGuard, Weak};

use crate::{
    account::{Account, Counted, Purpose},
    error::AmpError,
    finding::Finding,
    live_scale::LiveScale,
    loss_scale::Observation,
};

/// What the end of a step changes.
pub(crate) struct StepEnd<'a> {
    /// Of the optimizer.
    pub(crate) account: MutexGuard<'a, Account>,
    pub(crate) live: &'a LiveScale,
    /// The optimizer, among those that share the scale.
    pub(crate) member: Weak<()>,
}

impl StepEnd<'_> {
    /// Counts gradients, and moves the scale by them. An error if they are an overflow, or a rejection, too many: the scale stays then.
    pub(crate) fn end(mut self, purpose: Purpose, found: &Finding) -> Result<(), AmpError> {
        self.count(purpose, found, true)?;
        if found.moves_scale() {
            self.advance(found.observation(), purpose, found.overflow.as_slice());
        }
        Ok(())
    }

    /// Counts gradients, which move the scale later, with others of their iteration. `is_first` of those to overflow.
    pub(crate) fn count(
        &mut self,
        purpose: Purpose,
        found: &Finding,
        is_first: bool,
    ) -> Result<(), AmpError> {
        let schedule = self.live.schedule();
        let counted = Counted {
            purpose,
            found,
            schedule: &schedule,
        };
        let recorded = self.account.record(counted, is_first);
        if found.spares_scale() && schedule.config().enabled {
            // The others that share the scale are not kept waiting.
            self.live.report(&self.member, None);
        }
        recorded
    }

    /// Moves the scale by what gradients have shown. `overflows` are the first parameters that overflow, of each optimizer.
    pub(crate) fn advance(&mut self, seen: Observation, purpose: Purpose, overflows: &[String]) {
        let schedule = self.live.schedule();
        if seen.outcome.is_stepped() {
            self.account.counters.consecutive_skips = 0;
        }
        if schedule.config().enabled {
            let moved = self.live.report(&self.member, Some(seen));
            let often = schedule.needs_measures();
            (self.account).record_scale(moved, seen, purpose, overflows, often);
        }
    }
}

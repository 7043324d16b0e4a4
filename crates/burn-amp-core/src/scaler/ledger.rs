//! The account of an optimizer in the hands of all who count its steps: itself, and its steps in flight. Every step ends here, whoever has
//! decided it: the account counts and logs it, and the scale moves. Knows no tensors.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::{
    error::AmpError,
    journal::account::{Account, Purpose},
    journal::{Journal, new_optimizer},
    lock::locked,
    scale::finding::Finding,
    scale::live_scale::LiveScale,
    scale::loss_scale::Observation,
};

/// An account, and the journals that show it. Steps in flight have it too, so that what they come to is counted although their
/// optimizer is gone.
#[derive(Debug)]
pub(crate) struct Ledger {
    account: Mutex<Account>,
    /// The optimizer, among those that share the scale.
    pub(crate) member: Arc<()>,
    optimizer: u64,
    /// Of this optimizer alone, wherever clones of it step; and that of its scale.
    journals: Vec<Journal>,
}

impl Ledger {
    /// Of a new optimizer; `shared` is the journal of its scale, if it shares that.
    pub(crate) fn new(member: Arc<()>, shared: Option<&Journal>, account: Account) -> Self {
        let own = std::iter::once(Journal::default());
        Self {
            account: Mutex::new(account),
            member,
            optimizer: new_optimizer(),
            journals: own.chain(shared.cloned()).collect(),
        }
    }

    /// That of a clone, which counts on by itself.
    pub(crate) fn forked(&self, member: Arc<()>) -> Self {
        Self {
            account: Mutex::new(self.account().clone()),
            member,
            optimizer: self.optimizer,
            journals: self.journals.clone(),
        }
    }

    pub(crate) fn account(&self) -> MutexGuard<'_, Account> {
        locked(&self.account)
    }

    /// That of this optimizer alone.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journals[0]
    }

    /// Shows the account in the journals, at the end of each call, and where no call has changed it: see [`Journal::show`].
    pub(crate) fn show(&self, ended_at: Option<f32>) {
        let account = self.account();
        for journal in &self.journals {
            journal.show(self.optimizer, &account, ended_at);
        }
    }

    /// The journals count the steps of this optimizer alone.
    pub(crate) fn forget_others(&self) {
        self.journals.iter().for_each(Journal::forget);
    }

    /// Counts gradients, and moves the scale by them. An error if they are an overflow, or a rejection, too many: the scale stays then.
    pub(crate) fn end(
        &self,
        live: &LiveScale,
        purpose: Purpose,
        found: &Finding,
    ) -> Result<(), AmpError> {
        self.count(live, purpose, found, true)?;
        if found.moves_scale() {
            let overflows = found.overflow.as_slice();
            self.advance(live, found.observation(), purpose, overflows);
        }
        Ok(())
    }

    /// Counts gradients, which move the scale later, with others of their iteration. `is_first` of those to overflow.
    pub(crate) fn count(
        &self,
        live: &LiveScale,
        purpose: Purpose,
        found: &Finding,
        is_first: bool,
    ) -> Result<(), AmpError> {
        let schedule = live.schedule();
        let mut account = self.account();
        let recorded = account.record(purpose, found, &schedule, is_first);
        if found.spares_scale() && schedule.config().enabled {
            // The others that share the scale are not kept waiting.
            live.report(&Arc::downgrade(&self.member), None);
        }
        recorded
    }

    /// Moves the scale by what gradients have shown. `overflows` are the first parameters that overflow, of each optimizer.
    pub(crate) fn advance(
        &self,
        live: &LiveScale,
        seen: Observation,
        purpose: Purpose,
        overflows: &[String],
    ) {
        let schedule = live.schedule();
        let mut account = self.account();
        if seen.outcome.is_stepped() {
            account.counters.consecutive_skips = 0;
        }
        if schedule.config().enabled {
            let moved = live.report(&Arc::downgrade(&self.member), Some(seen));
            let often = schedule.needs_measures();
            account.record_scale(moved, seen, purpose, overflows, often);
        }
    }
}

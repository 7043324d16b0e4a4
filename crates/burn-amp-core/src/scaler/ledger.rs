//! The scale that an optimizer moves, and its account, in the hands of all who count its steps: itself, and its steps in flight. Every step ends
//! here, whoever has decided it: the account counts and logs it, and the scale moves. Knows no tensors.

use std::sync::{Arc, Mutex};

use crate::journal::account::{Account, Purpose};
use crate::journal::{Caller, Ended, Journal, SharedAccount, new_optimizer};
use crate::{
    border::mixed_precision::MixedPrecision,
    error::AmpError,
    lock::{Guard, locked},
    scale::finding::Finding,
    scale::live_scale::LiveScale,
    scale::loss_scale::Evidence,
};

/// The loss scale of a [`MixedPrecision`], which scopes apply and clones share, or one of a scaler's own; and an account.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) live: Arc<LiveScale>,
    pub(crate) amp: Option<MixedPrecision>,
    pub(crate) page: Arc<Page>,
}

/// The account of an optimizer, and the journals that show it. What a step in flight keeps: it must not keep the scale, which keeps the step.
#[derive(Debug)]
pub(crate) struct Page {
    account: SharedAccount,
    /// The optimizer, among those that share the scale.
    pub(crate) member: Arc<()>,
    optimizer: u64,
    /// Of this optimizer alone, wherever clones of it step; and that of its scale.
    journals: Vec<Journal>,
}

/// That of a clone, which counts on by itself. Nobody follows a scale of its own yet.
impl Clone for Ledger {
    fn clone(&self) -> Self {
        match self.amp {
            Some(_) => self.forked(self.page.member.clone()),
            None => self.detached(),
        }
    }
}

impl Ledger {
    /// Of a new optimizer.
    pub(crate) fn new(live: Arc<LiveScale>, amp: Option<MixedPrecision>, account: Account) -> Self {
        // The steps in flight end iterations without this optimizer.
        live.resolve(true);
        let shared = amp.iter().map(|amp| amp.journal().clone());
        let page = Page {
            account: Arc::new(Mutex::new(account)),
            member: live.join(),
            optimizer: new_optimizer(),
            journals: std::iter::once(Journal::default()).chain(shared).collect(),
        };
        let page = Arc::new(page);
        Self { live, amp, page }
    }

    pub(crate) fn of(amp: &MixedPrecision, account: Account) -> Self {
        Self::new(amp.live().clone(), Some(amp.clone()), account)
    }

    /// With a scale of its own, in the same state.
    pub(crate) fn detached(&self) -> Self {
        let account = self.account().clone();
        Self::new(Arc::new(self.live.detached()), None, account)
    }

    /// The same scale with an account that goes on by itself.
    pub(crate) fn forked(&self, member: Arc<()>) -> Self {
        let page = Page {
            account: Arc::new(Mutex::new(self.account().clone())),
            member,
            optimizer: self.page.optimizer,
            journals: self.page.journals.clone(),
        };
        Self {
            live: self.live.clone(),
            amp: self.amp.clone(),
            page: Arc::new(page),
        }
    }

    pub(crate) fn account(&self) -> Guard<'_, Account> {
        locked(&self.page.account)
    }

    /// The optimizer, among those that share the scale. Clones are one.
    pub(crate) fn optimizer(&self) -> u64 {
        self.page.optimizer
    }

    /// That of this optimizer alone.
    pub(crate) fn journal(&self) -> &Journal {
        &self.page.journals[0]
    }

    /// Shows the account in the journals, at the end of each call of this thread, and where no call has changed it: see [`Journal::show`].
    pub(crate) fn show(&self, ended_at: Option<f32>) {
        let caller = Some(Caller::here());
        let ended = ended_at.map(|loss_scale| Ended { loss_scale, caller });
        self.show_ended(ended);
    }

    /// As [`show`](Self::show), of any call.
    pub(crate) fn show_ended(&self, ended: Option<Ended>) {
        for journal in &self.page.journals {
            journal.show(self.page.optimizer, &self.page.account, ended.as_ref());
        }
    }

    /// Shows what the account counts between two calls.
    pub(crate) fn show_account(&self) {
        for journal in &self.page.journals {
            journal.show_account(self.page.optimizer, &self.page.account);
        }
    }

    /// Shows the scale after an iteration of so many steps.
    pub(crate) fn show_end(&self, steps: usize, loss_scale: f32) {
        let journals = self.page.journals.iter().filter(|_| steps > 0);
        journals.for_each(|journal| {
            journal.end_iteration(self.page.optimizer, steps, loss_scale);
        });
    }

    /// The journals count the steps of this optimizer alone.
    pub(crate) fn forget_others(&self) {
        self.page.journals.iter().for_each(Journal::forget);
    }

    /// Counts gradients, and moves the scale by them. An error if they are an overflow, or a rejection, too many: the scale stays then.
    pub(crate) fn end(&self, purpose: Purpose, found: &Finding) -> Result<(), AmpError> {
        self.count(purpose, found, true)?;
        if let Some(seen) = found.evidence() {
            self.advance(seen, purpose, found.overflow.as_slice());
        }
        Ok(())
    }

    /// Counts gradients, which move the scale later, with others of their iteration. `is_first` of those to overflow.
    pub(crate) fn count(
        &self,
        purpose: Purpose,
        found: &Finding,
        is_first: bool,
    ) -> Result<(), AmpError> {
        let schedule = self.live.schedule();
        let raises = found.overflow.is_some() && schedule.config().raise_error_at_min_scale;
        let is_at_floor = raises && self.live.is_at_floor();
        let mut recorded =
            (self.account()).record(purpose, found, &schedule, is_at_floor, is_first);
        if found.spares_scale() && schedule.config().enabled {
            // The others that share the scale are not kept waiting.
            self.live.report(&self.page.member, None);
        }
        // A step without gradients says nothing of the scale, but what came before it explains nothing that comes.
        if found.is_empty && purpose == Purpose::Step {
            self.live.events.end_iteration(self.live.tested());
        }
        if let Err(AmpError::LossNotFinite { last_read, .. }) = &mut recorded {
            *last_read = self.live.last_read().map(|path| path.to_string());
        }
        recorded
    }

    /// Moves the scale by what gradients have shown. `overflows` are the first parameters that overflow, of each optimizer.
    pub(crate) fn advance(&self, seen: Evidence, purpose: Purpose, overflows: &[String]) {
        let schedule = self.live.schedule();
        if seen != Evidence::Overflow {
            self.account().end_row();
        }
        if schedule.config().enabled {
            let moved = self.live.report(&self.page.member, Some(seen));
            let often = schedule.needs_measures();
            (self.account()).record_scale(moved, seen, purpose, overflows, often);
        }
    }
}

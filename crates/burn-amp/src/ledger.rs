//! The account of an optimizer in the hands of all who count its steps: itself, and its steps in flight.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::{
    account::Account,
    journal::{Journal, new_optimizer},
    lock::locked,
};

/// An account, and the journals that show it. Steps in flight have it too, so that what they come to is counted although their
/// optimizer is gone.
#[derive(Debug)]
pub(crate) struct Ledger {
    account: Mutex<Account>,
    optimizer: u64,
    /// Of this optimizer alone, wherever clones of it step; and that of its scale.
    journals: Vec<Journal>,
}

impl Ledger {
    /// Of a new optimizer; `shared` is the journal of its scale, if it shares that.
    pub(crate) fn new(shared: Option<&Journal>, account: Account) -> Self {
        Self {
            account: Mutex::new(account),
            optimizer: new_optimizer(),
            journals: [Journal::default()]
                .into_iter()
                .chain(shared.cloned())
                .collect(),
        }
    }

    /// That of a clone, which counts on by itself. Nobody follows the clone of an optimizer that shares no scale yet.
    fn forked(&self) -> Self {
        Self {
            account: Mutex::new(self.account().clone()),
            optimizer: self.optimizer,
            journals: match self.journals.len() {
                1 => vec![Journal::default()],
                _ => self.journals.clone(),
            },
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
}

/// The ledger of an optimizer. A clone has one of its own.
#[derive(Debug)]
pub(crate) struct OwnLedger(pub(crate) Arc<Ledger>);

impl Clone for OwnLedger {
    fn clone(&self) -> Self {
        Self(Arc::new(self.0.forked()))
    }
}

impl std::ops::Deref for OwnLedger {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.0
    }
}

//! An optimizer's place at the scale that it moves.

use std::sync::{Arc, Weak};

use super::{account::Account, live_scale::LiveScale, members::OptimizerId, members::Seat};

/// An optimizer among those that share a scale. A step in flight keeps it, and must not keep the scale, which keeps the step.
#[derive(Debug)]
pub(crate) struct Place {
    live: Weak<LiveScale>,
    pub(crate) id: OptimizerId,
    pub(crate) seat: Seat,
}

impl Place {
    /// The place of a new optimizer.
    pub(crate) fn new(live: &Arc<LiveScale>, account: Account) -> Arc<Self> {
        // The steps in flight end iterations without this optimizer.
        live.resolve(true);
        let id = OptimizerId::new();
        Self::with(live, id, live.join(id), account)
    }

    /// The place of a clone, which counts on by itself.
    pub(crate) fn forked(&self, live: &Arc<LiveScale>) -> Arc<Self> {
        let account = live.account(self.id, |account| account.clone());
        Self::with(live, self.id.forked(), self.seat.clone(), account)
    }

    /// The place of a clone that is a worker of the same optimizer; of one that makes no steps, if it has not `joined`.
    pub(crate) fn worker(&self, live: &Arc<LiveScale>, joined: bool) -> Arc<Self> {
        let account = live.account(self.id, |account| account.clone());
        let id = self.id.worker();
        let seat = match joined {
            true => live.join(id),
            false => Seat::default(),
        };
        Self::with(live, id, seat, account)
    }

    fn with(live: &Arc<LiveScale>, id: OptimizerId, seat: Seat, account: Account) -> Arc<Self> {
        live.set_account(id, Some(account));
        let live = Arc::downgrade(live);
        Arc::new(Self { live, id, seat })
    }

    /// The scale, if it is still there.
    pub(crate) fn live(&self) -> Option<Arc<LiveScale>> {
        self.live.upgrade()
    }
}

/// Leaves what it has counted in the journal.
impl Drop for Place {
    fn drop(&mut self) {
        if let Some(live) = self.live() {
            live.set_account(self.id, None);
        }
    }
}

//! The steps of a scale or of one optimizer, for those who follow them.

use std::sync::Arc;

use super::{journal::Cursor, journal::StepEntry, live_scale::LiveScale};

/// The steps of a [`MixedPrecision`](crate::MixedPrecision), a `GradScaler` or a
/// [`ScaledOptimizer`](crate::ScaledOptimizer), which a [`ScaledLrScheduler`](crate::ScaledLrScheduler) follows.
///
/// A handle: clones follow the same steps.
#[derive(Clone)]
pub struct Followed {
    live: Arc<LiveScale>,
    /// The optimizer whose steps they are, if not those of all.
    optimizer: Option<u64>,
}

impl Followed {
    pub(crate) fn new(live: &Arc<LiveScale>, optimizer: Option<u64>) -> Self {
        let live = live.clone();
        Self { live, optimizer }
    }

    /// The number of steps of all optimizers that were entered.
    pub fn steps(&self) -> u64 {
        self.live.journal(|journal| journal.count)
    }

    /// The first remembered step of all optimizers after so many, and how many there are up to it.
    pub fn step_after(&self, read: u64) -> Option<(u64, StepEntry)> {
        self.live.journal(|journal| journal.step_after(read))
    }

    /// The present end of the calls.
    pub(crate) fn cursor(&self) -> Cursor {
        (self.live).journal(|journal| journal.cursor(self.optimizer))
    }
}

use burn::train::Interrupter;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use crate::error::AmpError;

/// Who ends a `Learner` run that fails, and why it failed. Used by `train`.
///
/// All under one lock: a failure and a request for the interrupter may come at the same time, and one must see the other.
#[derive(Default)]
pub(crate) struct Ending {
    /// Whether there is an error: asked at every step, without a lock.
    failed: AtomicBool,
    state: Mutex<EndingState>,
}

#[derive(Default)]
pub(crate) struct EndingState {
    pub(crate) error: Option<AmpError>,
    /// How many failures there were: several workers may forget one, but not the next.
    pub(crate) failures: u64,
    pub(crate) interrupter: Option<Interrupter>,
    /// Whether a step was asked for after the interrupter was told: then it is not the run's.
    pub(crate) unheard: bool,
    /// Metrics that will report the error.
    pub(crate) watchers: usize,
}

impl Ending {
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn set_failed(&self, failed: bool) {
        self.failed.store(failed, Ordering::Release);
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, EndingState> {
        // Nothing in here is left half written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Which steps were taken, for those who follow an optimizer from beside it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, ThreadId},
};

/// What a [`ScaledLrScheduler`](crate::ScaledLrScheduler) follows: the steps of a [`MixedPrecision`](crate::MixedPrecision), a
/// [`GradScaler`](crate::GradScaler) or a [`ScaledOptimizer`](crate::ScaledOptimizer).
///
/// Each thread's by itself: the workers of a training on several devices step in their own time.
#[derive(Clone, Default)]
pub struct StepLog {
    calls: Arc<Mutex<HashMap<ThreadId, Calls>>>,
}

/// How many calls have stepped, and how many have not: skips, micro-batches, discards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) taken: u64,
    pub(crate) held: u64,
}

/// Who follows it says nothing of the state of what is followed.
impl std::fmt::Debug for StepLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StepLog")
    }
}

/// The log of one scaler alone: a clone is followed by nobody yet.
#[derive(Debug, Default)]
pub(crate) struct OwnLog(pub(crate) StepLog);

impl Clone for OwnLog {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl StepLog {
    pub(crate) fn record(&self, taken: bool) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(thread::current().id()).or_default();
        match taken {
            true => calls.taken += 1,
            false => calls.held += 1,
        }
    }

    /// The calls of this thread, none if it has made none, and those of all threads.
    pub(crate) fn calls(&self) -> (Option<Calls>, Calls) {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let own = calls.get(&thread::current().id()).copied();
        let sum = |sum: Calls, calls: &Calls| Calls {
            taken: sum.taken + calls.taken,
            held: sum.held + calls.held,
        };
        (own, calls.values().fold(Calls::default(), sum))
    }

    /// Whether the optimizer was called since `before`, and has not stepped: on this thread, or on any if this one makes no calls.
    pub(crate) fn is_held_since(&self, before: (Option<Calls>, Calls)) -> bool {
        let (now, before) = match (self.calls(), before) {
            ((Some(own), _), (before, _)) => (own, before.unwrap_or_default()),
            ((None, all), (_, before)) => (all, before),
        };
        now.taken == before.taken && now.held != before.held
    }
}

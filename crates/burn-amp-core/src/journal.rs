//! What has become of the steps of all optimizers of one scale, for those who follow them: metrics, learning-rate schedulers, a
//! `Learner`. Each reads from where it has read to. Knows no tensors, and decides nothing.

pub(crate) mod account;
pub(crate) mod step_counters;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use crate::{
    gradients::status::GradientStatus, journal::account::Account,
    journal::step_counters::StepCounters, lock::locked, scale::loss_scale::StepOutcome,
};

/// How many steps are remembered. The counters go on.
const MAX_STEPS: usize = 128;

/// The steps of a [`MixedPrecision`](crate::MixedPrecision), a [`GradScaler`](crate::GradScaler) or a
/// [`ScaledOptimizer`](crate::ScaledOptimizer), which a [`ScaledLrScheduler`](crate::ScaledLrScheduler) follows.
///
/// A handle: clones read the same journal.
#[derive(Clone, Default)]
pub struct Journal {
    entries: Arc<Mutex<Entries>>,
}

#[derive(Default)]
struct Entries {
    /// Of each thread by itself: the workers of a training on several devices step in their own time.
    calls: HashMap<ThreadId, Calls>,
    steps: VecDeque<StepEntry>,
    /// Of all steps, those that are forgotten included.
    count: u64,
    /// Of each optimizer.
    counters: BTreeMap<u64, StepCounters>,
    /// Of the optimizer that was called last.
    last: Account,
}

/// How many calls have stepped, and how many have not: skips, micro-batches, discards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls {
    applied: u64,
    others: u64,
}

/// A step, as a metric shows it.
#[derive(Clone, Copy, Debug)]
pub struct StepEntry {
    /// What became of it.
    pub outcome: Option<StepOutcome>,
    /// After the step.
    pub loss_scale: f64,
    /// None where nothing was measured.
    pub norm: Option<f64>,
    /// The share of gradients that were zero.
    pub zero_share: Option<f64>,
}

/// Where a learning-rate scheduler has read to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// None if this thread had made no call.
    own: Option<Calls>,
    all: Calls,
}

impl Journal {
    /// Shows the account of an optimizer: with the loss scale after it, the call that it is of has ended; without one, no call has changed
    /// it: it was loaded, or set back.
    pub(crate) fn show(
        &self,
        optimizer: u64,
        account: &Account,
        thread: ThreadId,
        ended_at: Option<f32>,
    ) {
        let mut entries = locked(&self.entries);
        if let Some(loss_scale) = ended_at {
            entries.enter(account, thread, loss_scale);
        }
        entries.counters.insert(optimizer, account.counters);
        entries.last = account.clone();
    }

    /// The counters of all optimizers start again.
    pub(crate) fn forget(&self) {
        locked(&self.entries).counters.clear();
    }

    /// What the last call has done, of any optimizer.
    pub fn last(&self) -> (Option<StepOutcome>, Option<GradientStatus>) {
        let last = &locked(&self.entries).last;
        (last.outcome, last.status.clone())
    }

    /// The counters of all optimizers together.
    pub fn counters(&self) -> StepCounters {
        let entries = locked(&self.entries);
        let counters = entries.counters.values().copied();
        let sum = counters.reduce(StepCounters::and).unwrap_or_default();
        sum.with_rows_of(entries.last.counters)
    }

    /// How many steps were entered.
    pub fn steps(&self) -> u64 {
        locked(&self.entries).count
    }

    /// The first remembered step after so many, and how many there are up to it.
    pub fn step_after(&self, read: u64) -> Option<(u64, StepEntry)> {
        let entries = locked(&self.entries);
        let forgotten = entries.count - entries.steps.len() as u64;
        let read = read.max(forgotten);
        let step = entries.steps.get((read - forgotten) as usize)?;
        Some((read + 1, *step))
    }

    /// Where it ends now.
    pub(crate) fn cursor(&self) -> Cursor {
        let entries = locked(&self.entries);
        let calls = || entries.calls.values();
        Cursor {
            own: entries.calls.get(&thread::current().id()).copied(),
            all: Calls {
                applied: calls().map(|calls| calls.applied).sum(),
                others: calls().map(|calls| calls.others).sum(),
            },
        }
    }

    /// Whether the optimizer was called since then, and has not stepped: on this thread, or on any if this one makes no calls.
    pub(crate) fn is_held_since(&self, before: Cursor) -> bool {
        let now = self.cursor();
        let (now, before) = match now.own {
            Some(own) => (own, before.own.unwrap_or_default()),
            None => (now.all, before.all),
        };
        now.applied == before.applied && now.others != before.others
    }
}

impl Entries {
    /// Enters what a call has done.
    fn enter(&mut self, account: &Account, thread: ThreadId, loss_scale: f32) {
        let calls = self.calls.entry(thread).or_default();
        match account.outcome {
            Some(StepOutcome::Stepped) => calls.applied += 1,
            _ => calls.others += 1,
        }
        if !account.is_step {
            return;
        }
        if self.steps.len() == MAX_STEPS {
            self.steps.pop_front();
        }
        let status = account.status.as_ref();
        self.steps.push_back(StepEntry {
            outcome: account.outcome,
            loss_scale: loss_scale.into(),
            norm: status.map(GradientStatus::norm),
            zero_share: status.map(GradientStatus::zero_share),
        });
        self.count += 1;
    }
}

/// A number that no other optimizer of the program has.
pub(crate) fn new_optimizer() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Who follows it says nothing of the state of what is followed.
impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Journal")
    }
}

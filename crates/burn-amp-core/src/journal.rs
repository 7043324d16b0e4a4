//! What has become of the steps of all optimizers of one scale, for those who follow them: metrics, learning-rate schedulers, a
//! `Learner`. Each reads from where it has read to. Knows no tensors, and decides nothing.

pub(crate) mod account;
pub(crate) mod step_counters;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

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
    /// Of each thread that runs by itself: the workers of a training on several devices step in their own time.
    calls: Vec<(Caller, Calls)>,
    /// Of threads that have ended.
    ended: Calls,
    /// With the optimizers that have made them.
    steps: VecDeque<(u64, StepEntry)>,
    /// Of all steps, those that are forgotten included.
    count: u64,
    /// Of each optimizer, as it counts on.
    accounts: BTreeMap<u64, SharedAccount>,
    last: Last,
}

/// The account of an optimizer, which a journal reads whenever it is asked.
pub(crate) type SharedAccount = Arc<Mutex<Account>>;

/// What the last call has done, of any optimizer.
#[derive(Default)]
struct Last {
    optimizer: u64,
    outcome: Option<StepOutcome>,
    status: Option<GradientStatus>,
}

/// A thread, known as long as it runs.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Weak<()>);

impl Caller {
    /// This thread.
    pub(crate) fn here() -> Self {
        thread_local! {
            static HERE: Arc<()> = Arc::default();
        }
        Self(HERE.try_with(Arc::downgrade).unwrap_or_default())
    }

    fn is(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }

    fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The end of a call.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// The loss scale after it.
    pub(crate) loss_scale: f32,
    /// Who was to step, with the learning rate of a scheduler; none of a step that is only observed.
    pub(crate) caller: Option<Caller>,
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
    /// Of this thread.
    own: Calls,
    all: Calls,
}

impl Journal {
    /// Shows the account of an optimizer, and what a call has done that has `ended`. None where no call has changed it: it was loaded, or set back.
    pub(crate) fn show(&self, optimizer: u64, account: &SharedAccount, ended: Option<&Ended>) {
        let now = locked(account).clone();
        let mut entries = locked(&self.entries);
        if let Some(ended) = ended {
            entries.enter(optimizer, &now, ended);
        }
        entries.accounts.insert(optimizer, account.clone());
        entries.last = Last {
            optimizer,
            outcome: now.outcome,
            status: now.status,
        };
    }

    /// Shows the account of an optimizer, which has changed between two calls: maybe that of a clone, which counts on by itself.
    pub(crate) fn show_account(&self, optimizer: u64, account: &SharedAccount) {
        let mut entries = locked(&self.entries);
        entries.accounts.insert(optimizer, account.clone());
        entries.last.optimizer = optimizer;
    }

    /// The scale after the last steps of an optimizer, so many: their iteration has ended since.
    pub(crate) fn end_iteration(&self, optimizer: u64, steps: usize, loss_scale: f32) {
        let mut entries = locked(&self.entries);
        let own = entries.steps.iter_mut().rev();
        let own = own.filter(|(by, _)| *by == optimizer).take(steps);
        own.for_each(|(_, step)| step.loss_scale = loss_scale.into());
    }

    /// The counters of all optimizers start again.
    pub(crate) fn forget(&self) {
        locked(&self.entries).accounts.clear();
    }

    /// What the last call has done, of any optimizer.
    pub fn last(&self) -> (Option<StepOutcome>, Option<GradientStatus>) {
        let last = &locked(&self.entries).last;
        (last.outcome, last.status.clone())
    }

    /// The counters of all optimizers together.
    pub fn counters(&self) -> StepCounters {
        let (accounts, last) = {
            let entries = locked(&self.entries);
            let last = entries.accounts.get(&entries.last.optimizer).cloned();
            (entries.accounts.clone(), last)
        };
        let counters = |account: &SharedAccount| locked(account).counters;
        let sum = accounts.values().map(counters).reduce(StepCounters::and);
        let rows = last.as_ref().map(counters).unwrap_or_default();
        sum.unwrap_or_default().with_rows_of(rows)
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
        let (_, step) = entries.steps.get((read - forgotten) as usize)?;
        Some((read + 1, *step))
    }

    /// Where it ends now.
    pub(crate) fn cursor(&self) -> Cursor {
        let (here, entries) = (Caller::here(), locked(&self.entries));
        let own = entries.calls.iter().find(|(caller, _)| caller.is(&here));
        let calls = entries.calls.iter().map(|(_, calls)| *calls);
        Cursor {
            own: own.map(|(_, calls)| *calls).unwrap_or_default(),
            all: calls.fold(entries.ended, Calls::and),
        }
    }

    /// Whether the optimizer was called since then, and has not stepped: on this thread, or on any if this one has made no calls since.
    pub(crate) fn is_held_since(&self, before: Cursor) -> bool {
        let now = self.cursor();
        let (now, before) = match now.own == before.own {
            false => (now.own, before.own),
            true => (now.all, before.all),
        };
        now.applied == before.applied && now.others != before.others
    }
}

impl Calls {
    fn and(self, other: Self) -> Self {
        Self {
            applied: self.applied + other.applied,
            others: self.others + other.others,
        }
    }
}

impl Entries {
    /// The calls of a thread.
    fn calls_of(&mut self, caller: &Caller) -> &mut Calls {
        let known = self.calls.iter().position(|(known, _)| known.is(caller));
        if let Some(at) = known {
            return &mut self.calls[at].1;
        }
        let gone = self.calls.extract_if(.., |(caller, _)| caller.has_ended());
        self.ended = gone.map(|(_, calls)| calls).fold(self.ended, Calls::and);
        if caller.has_ended() {
            return &mut self.ended;
        }
        self.calls.push((caller.clone(), Calls::default()));
        let at = self.calls.len() - 1;
        &mut self.calls[at].1
    }

    /// Enters what a call has done.
    fn enter(&mut self, optimizer: u64, account: &Account, Ended { loss_scale, caller }: &Ended) {
        if let Some(caller) = caller {
            let calls = self.calls_of(caller);
            match account.outcome {
                Some(StepOutcome::Stepped) => calls.applied += 1,
                _ => calls.others += 1,
            }
        }
        if !account.is_step {
            return;
        }
        if self.steps.len() == MAX_STEPS {
            self.steps.pop_front();
        }
        let status = account.status.as_ref();
        let step = StepEntry {
            outcome: account.outcome,
            loss_scale: (*loss_scale).into(),
            norm: status.map(GradientStatus::norm),
            zero_share: status.map(GradientStatus::zero_share),
        };
        self.steps.push_back((optimizer, step));
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// It remembers the calls of those that have ended, and not the threads.
    #[test]
    fn threads_that_have_ended_are_forgotten() {
        let (journal, account) = (Journal::default(), SharedAccount::default());
        let call = || {
            let caller = Some(Caller::here());
            let ended = Ended {
                loss_scale: 1.0,
                caller,
            };
            journal.show(0, &account, Some(&ended));
        };
        for _ in 0..100 {
            thread::scope(|threads| threads.spawn(call).join().unwrap());
        }
        call();
        assert_eq!(locked(&journal.entries).calls.len(), 1);
        let cursor = journal.cursor();
        assert_eq!((cursor.own.others, cursor.all.others), (1, 101));
    }
}

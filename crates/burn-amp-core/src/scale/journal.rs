//! What has become of the steps of all optimizers of one scale, for those who follow them: metrics, learning-rate schedulers, a
//! `Learner`. Each reads from where it has read to. Knows no tensors, and decides nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use super::{account::Account, account::Call, loss_scale::StepOutcome, members::OptimizerId};
use super::{status::GradientStatus, step_counters::StepCounters};

/// The number of steps that are remembered. The counters go on.
const MAX_STEPS: usize = 128;

/// A step that is remembered.
#[derive(Clone, Debug)]
pub struct StepEntry {
    /// The optimizer that has made it.
    optimizer: u64,
    /// Its outcome.
    pub outcome: Option<StepOutcome>,
    /// The measures of its gradients; none where nothing was measured.
    pub status: Option<Arc<GradientStatus>>,
    /// The loss scale after the step.
    pub loss_scale: f64,
}

/// The place up to which a learning-rate scheduler has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The calls of this thread.
    own: Calls,
    all: Calls,
}

/// The accounts of all optimizers of a scale, and what their calls have done.
#[derive(Default)]
pub(crate) struct Journal {
    accounts: BTreeMap<u64, Account>,
    /// The account of each optimizer: that of the clone which was called last.
    shown: BTreeMap<u64, Shown>,
    /// The result of the last call, and its optimizer.
    pub(crate) last: Call,
    last_optimizer: u64,
    /// The calls of each thread that runs by itself: the workers of a training on several devices step in their own time.
    calls: Vec<Row>,
    /// The calls of threads that have ended, by the optimizer.
    ended: BTreeMap<u64, Calls>,
    /// The last steps.
    steps: VecDeque<StepEntry>,
    /// The number of all steps, those that are forgotten included.
    pub(super) count: u64,
}

struct Shown {
    account: u64,
    /// The counters as they were when the clone was dropped.
    counters: StepCounters,
}

/// The calls of an optimizer on a thread.
struct Row {
    caller: Caller,
    optimizer: u64,
    calls: Calls,
}

/// The numbers of calls that have stepped, and of those that have not: skips, micro-batches, discards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Calls {
    applied: u64,
    others: u64,
}

impl Cursor {
    /// Says whether there were calls since `before`, and none has stepped: on this thread, or on any if this one has made none.
    pub(crate) fn is_held_since(self, before: Self) -> bool {
        let (now, before) = match self.own == before.own {
            false => (self.own, before.own),
            true => (self.all, before.all),
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

    fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Journal {
    /// The first remembered step after so many, and how many there are up to it.
    pub(super) fn step_after(&self, read: u64) -> Option<(u64, StepEntry)> {
        let forgotten = self.count - self.steps.len() as u64;
        let read = read.max(forgotten);
        let step = self.steps.get((read - forgotten) as usize)?;
        Some((read + 1, step.clone()))
    }

    /// The present end of the calls: of one optimizer, or of all.
    pub(super) fn cursor(&self, optimizer: Option<u64>) -> Cursor {
        let here = Caller::here();
        let is_meant = |by: u64| optimizer.is_none_or(|only| only == by);
        let rows = self.calls.iter().filter(|row| is_meant(row.optimizer));
        let own = rows.clone().filter(|row| row.caller.0.ptr_eq(&here.0));
        let ended = self.ended.iter().filter(|(by, _)| is_meant(**by));
        let all = rows.map(|row| row.calls);
        let all = all.chain(ended.map(|(_, calls)| *calls));
        Cursor {
            own: own.map(|row| row.calls).fold(Calls::default(), Calls::and),
            all: all.fold(Calls::default(), Calls::and),
        }
    }

    /// The account of an optimizer.
    pub(super) fn account(&mut self, id: OptimizerId) -> &mut Account {
        self.accounts.entry(id.account).or_default()
    }

    /// The account is that of a place from now on; none if the place is gone.
    pub(super) fn put(&mut self, id: OptimizerId, account: Option<Account>) {
        if let Some(account) = account {
            self.accounts.insert(id.account, account);
        } else if let Some(account) = self.accounts.remove(&id.account)
            && let Some(shown) = self.shown.get_mut(&id.optimizer)
            && shown.account == id.account
        {
            shown.counters = account.counters;
        }
    }

    /// Shows the account of an optimizer: maybe that of a clone, which counts on by itself. Its last call is the last one, if it is `loaded`.
    pub(super) fn show(&mut self, id: OptimizerId, loaded: bool) {
        if loaded {
            self.last = self.account(id).last.clone();
        }
        let shown = Shown {
            account: id.account,
            counters: StepCounters::default(),
        };
        self.shown.insert(id.optimizer, shown);
        self.last_optimizer = id.optimizer;
    }

    /// Enters what a call has done, with the loss scale after it. `caller` was to step, with the learning rate of a scheduler; none of a step that
    /// is only observed.
    pub(super) fn enter(
        &mut self,
        id: OptimizerId,
        call: Call,
        loss_scale: f32,
        caller: Option<Caller>,
    ) {
        if let Some(caller) = caller {
            let is_applied = call.outcome == Some(StepOutcome::Stepped);
            let calls = self.calls_of(caller, id.optimizer);
            calls.applied += u64::from(is_applied);
            calls.others += u64::from(!is_applied);
        }
        if call.is_step {
            if self.steps.len() == MAX_STEPS {
                self.steps.pop_front();
            }
            self.steps.push_back(StepEntry {
                optimizer: id.optimizer,
                outcome: call.outcome,
                status: call.status.clone(),
                loss_scale: loss_scale.into(),
            });
            self.count += 1;
        }
        self.account(id).last = call;
        self.show(id, true);
    }

    /// The calls of an optimizer on a thread.
    fn calls_of(&mut self, caller: Caller, optimizer: u64) -> &mut Calls {
        let mut rows = self.calls.iter();
        let known =
            rows.position(|row| row.optimizer == optimizer && row.caller.0.ptr_eq(&caller.0));
        if let Some(at) = known {
            return &mut self.calls[at].calls;
        }
        for row in self.calls.extract_if(.., |row| row.caller.has_ended()) {
            let ended = self.ended.entry(row.optimizer).or_default();
            *ended = ended.and(row.calls);
        }
        if caller.has_ended() {
            return self.ended.entry(optimizer).or_default();
        }
        let calls = Calls::default();
        self.calls.push(Row {
            caller,
            optimizer,
            calls,
        });
        let at = self.calls.len() - 1;
        &mut self.calls[at].calls
    }

    /// Corrects the scale after the last steps of an optimizer, so many: their iteration has ended since.
    pub(super) fn end_iteration(&mut self, optimizer: u64, steps: usize, loss_scale: f32) {
        let own = self.steps.iter_mut().rev();
        let own = own.filter(|step| step.optimizer == optimizer).take(steps);
        own.for_each(|step| step.loss_scale = loss_scale.into());
    }

    /// The counters of all optimizers start again.
    pub(super) fn forget(&mut self) {
        self.shown.clear();
    }

    /// The counters of all optimizers together.
    pub(crate) fn counters(&self) -> StepCounters {
        let counters = |shown: &Shown| match self.accounts.get(&shown.account) {
            Some(account) => account.counters,
            None => shown.counters,
        };
        let sum = self.shown.values().map(counters).reduce(StepCounters::and);
        let last = self.shown.get(&self.last_optimizer).map(counters);
        sum.unwrap_or_default()
            .with_rows_of(last.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, thread};

    use super::*;
    use crate::lock::locked;

    /// It remembers the calls of those that have ended, and not the threads.
    #[test]
    fn threads_that_have_ended_are_forgotten() {
        let journal = Mutex::new(Journal::default());
        let id = OptimizerId::new();
        let call = || {
            let (call, caller) = (Call::of(StepOutcome::Dropped, None), Caller::here());
            locked(&journal).enter(id, call, 1.0, Some(caller));
        };
        for _ in 0..100 {
            thread::scope(|threads| threads.spawn(call).join().unwrap());
        }
        call();
        assert_eq!(locked(&journal).calls.len(), 1);
        let cursor = locked(&journal).cursor(None);
        assert_eq!((cursor.own.others, cursor.all.others), (1, 101));
    }
}

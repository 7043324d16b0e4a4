//! The optimizers that share a scale, and the iterations that their steps make up. Moves nothing.

use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use crate::scale::account::Floor;
use crate::scale::finding::{Grounds, SkipCause, Tested};
use crate::scale::loss_scale::{Evidence, LossScale};

/// An optimizer that shares a scale: whose steps are counted where, and for whom an iteration waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptimizerId {
    /// The account in which its steps are counted. A clone counts on by itself.
    pub(super) account: u64,
    /// The number of the one for whom an iteration waits, and in the journal of who has made a step. Clones are one, and so are workers.
    pub(crate) optimizer: u64,
    /// The number of the worker who makes its steps. Clones are one.
    pub(super) seat: u64,
}

impl OptimizerId {
    /// The id of a new optimizer.
    pub(super) fn new() -> Self {
        let [account, optimizer, seat] = [(); 3].map(|()| new_number());
        Self {
            account,
            optimizer,
            seat,
        }
    }

    /// The id of a clone.
    pub(super) fn forked(self) -> Self {
        Self {
            account: new_number(),
            ..self
        }
    }

    /// The id of a worker, which steps by itself with the gradients of all.
    pub(super) fn worker(self) -> Self {
        Self {
            account: new_number(),
            seat: new_number(),
            ..self
        }
    }
}

/// A number that nothing else in the program has.
fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Held by all clones of a worker: it is there as long as one is.
pub(super) type Seat = Arc<()>;

#[derive(Debug, Default)]
pub(super) struct Members {
    all: Vec<Member>,
    pub(super) iteration: Iteration,
    /// Set once an iteration has ended.
    has_ended: bool,
}

/// An optimizer that shares the scale, or one of the workers that make its steps.
#[derive(Debug)]
struct Member {
    optimizer: u64,
    seat: u64,
    handle: Weak<()>,
    /// The number of steps that it has ended.
    steps: u64,
    /// The last step of which it has decided something.
    decided: Option<Decided>,
    /// Set if an iteration waits for its step: not for a scaler that tests no gradients.
    is_expected: bool,
    /// Set if it has not stepped yet, and others had when it began.
    is_late: bool,
}

/// The decisions of a worker on a step, which hold for the others: they make the same one, with the sum of the gradients of all.
#[derive(Debug)]
struct Decided {
    /// The number of the step.
    step: u64,
    /// Workers are threads.
    thread: ThreadId,
    cause: Option<SkipCause>,
    ended: Option<Ended>,
}

/// The end of a step: its finding, and by what it was counted.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) tested: Tested,
    pub(super) schedule: LossScale,
    pub(super) floor: Floor,
}

/// The steps of all optimizers between two movements of the scale.
#[derive(Debug, Default)]
pub(super) struct Iteration {
    /// The optimizers that have stepped in it.
    pub(super) reported: Vec<u64>,
    /// The evidence of all of them, if any says something of the scale.
    pub(super) seen: Option<Evidence>,
    /// The cause of the last skip.
    pub(super) cause: Option<SkipCause>,
    pub(super) grounds: Grounds,
    /// The regions whose factors are the cause, and not the scale that all share.
    pub(super) regions: Vec<Arc<str>>,
}

/// The moves of the scale by a step, in this order.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// An iteration that has ended before this step, and what it has shown.
    pub(super) before: Option<Option<Evidence>>,
    /// The regions that back off; the scale, if there are none.
    pub(super) back_off: Option<Vec<Arc<str>>>,
    /// The iteration that ends with this step, and what it has shown.
    pub(super) ended: Option<Option<Evidence>>,
}

impl Members {
    /// Adds one that is not expected yet.
    pub(super) fn join(&mut self, id: OptimizerId) -> Seat {
        let seat = Seat::default();
        let workers = self
            .all
            .iter()
            .filter(|member| member.optimizer == id.optimizer);
        let steps = workers.map(|member| member.steps).max();
        self.all.push(Member {
            optimizer: id.optimizer,
            seat: id.seat,
            handle: Arc::downgrade(&seat),
            steps: steps.unwrap_or(0),
            decided: None,
            is_expected: false,
            is_late: false,
        });
        seat
    }

    /// Has an iteration wait for the step of this one from now on. It is counted with those of before if it `begins` after them.
    pub(super) fn expect(&mut self, id: OptimizerId, begins: bool) {
        let is_late = begins && self.has_ended;
        let member = self.all.iter_mut().find(|member| member.seat == id.seat);
        if let Some(member) = member.filter(|member| !member.is_expected) {
            (member.is_expected, member.is_late) = (true, is_late);
        }
    }

    /// The other workers of its optimizer, with what each has decided on the step that this one makes now. One may be gone, after its last step.
    fn others(&self, id: OptimizerId) -> impl Iterator<Item = (&Member, Option<&Decided>)> {
        let here = thread::current().id();
        let own = self.all.iter().find(|member| member.seat == id.seat);
        let step = own.map(|own| own.steps + 1);
        let is_other =
            move |member: &&Member| member.optimizer == id.optimizer && member.seat != id.seat;
        self.all.iter().filter(is_other).map(move |member| {
            let is_meant =
                |decided: &&Decided| Some(decided.step) == step && decided.thread != here;
            (member, member.decided.as_ref().filter(is_meant))
        })
    }

    /// The decisions on the step that this one makes now.
    fn decided(&mut self, id: OptimizerId) -> Option<&mut Decided> {
        let own = self.all.iter_mut().find(|member| member.seat == id.seat)?;
        let step = own.steps + 1;
        let known = own.decided.take().filter(|decided| decided.step == step);
        Some(own.decided.insert(known.unwrap_or(Decided {
            step,
            thread: thread::current().id(),
            cause: None,
            ended: None,
        })))
    }

    /// The cause of the skip of the present step, if another worker has found it.
    pub(super) fn cause_by_others(&self, id: OptimizerId) -> Option<SkipCause> {
        self.others(id).find_map(|(_, decided)| decided?.cause)
    }

    /// Notes the cause for other workers.
    pub(super) fn explain(&mut self, id: OptimizerId, cause: SkipCause) {
        if let Some(decided) = self.decided(id) {
            decided.cause = Some(cause);
        }
    }

    /// The end of the present step by another worker, if there is one.
    pub(super) fn ended_by_others(&self, id: OptimizerId) -> Option<&Ended> {
        self.others(id)
            .find_map(|(_, decided)| decided?.ended.as_ref())
    }

    /// Ends a step of this one, which has found this. Returns its end by another worker who has found the same, if there is one: it has moved the scale.
    pub(super) fn end(
        &mut self,
        id: OptimizerId,
        tested: &Tested,
        own: impl FnOnce() -> Ended,
    ) -> Option<Ended> {
        let ended = self.ended_by_others(id);
        let known = ended.filter(|ended| ended.tested == *tested).cloned();
        let are_others = self
            .others(id)
            .any(|(other, _)| other.handle.strong_count() > 0);
        if are_others && let Some(decided) = self.decided(id) {
            decided.ended = Some(own());
        }
        if let Some(own) = self.all.iter_mut().find(|member| member.seat == id.seat) {
            own.steps += 1;
            if known.is_some() {
                (own.is_expected, own.is_late) = (true, false);
            }
        }
        known
    }

    /// Says whether an iteration waits for others than this one; for several, if it is none.
    pub(super) fn has_expected_beside(&self, id: Option<OptimizerId>) -> bool {
        let is_waited_for = |m: &&Member| m.is_expected && m.handle.strong_count() > 0;
        let others = self.all.iter().filter(is_waited_for);
        match id {
            Some(id) => others.filter(|member| member.seat != id.seat).count() > 0,
            None => others.count() > 1,
        }
    }

    /// Says whether there are others than this one.
    pub(super) fn has_others(&self, id: OptimizerId) -> bool {
        let mut others = self.all.iter().filter(|member| member.seat != id.seat);
        others.any(|member| member.handle.strong_count() > 0)
    }

    /// Takes what an optimizer's step has shown, none if it says nothing of the scale.
    ///
    /// An overflow counts at once, the first of an iteration alone. A finite iteration counts when all optimizers have stepped, or when one steps
    /// again: as one, with the measures of all their gradients.
    pub(super) fn report(&mut self, id: OptimizerId, seen: Option<Evidence>) -> Moves {
        let mut moves = Moves::default();
        if self.iteration.reported.contains(&id.optimizer) {
            moves.before = Some(take(&mut self.iteration).seen);
            self.has_ended = true;
        }
        let iteration = &mut self.iteration;
        iteration.reported.push(id.optimizer);
        if let Some(seen) = seen {
            let before = iteration.seen.replace(seen.after(iteration.seen));
            let is_first = seen == Evidence::Overflow && before != Some(seen);
            moves.back_off = is_first.then(|| take(&mut iteration.regions));
        }
        let (mut is_late, mut is_missing) = (false, false);
        self.all.retain_mut(|member| {
            if member.handle.strong_count() == 0 {
                return false;
            }
            if member.seat == id.seat {
                is_late = match member.is_expected {
                    true => take(&mut member.is_late),
                    false => self.has_ended,
                };
                member.is_expected = true;
            }
            is_missing |= member.is_expected && !iteration.reported.contains(&member.optimizer);
            true
        });
        // The first step of one that has begun after others belongs to theirs, and not to what they do next.
        if is_late && iteration.reported.len() == 1 || !is_missing {
            moves.ended = Some(take(&mut self.iteration).seen);
            self.has_ended = true;
        }
        moves
    }
}

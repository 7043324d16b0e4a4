//! The optimizers that share a scale, and the iterations that their steps make up. Moves nothing.

use std::sync::{Arc, Weak};

use crate::scale::loss_scale::{Evidence, SkipCause};

#[derive(Debug, Default)]
pub(crate) struct Members {
    all: Vec<Member>,
    pub(crate) iteration: Iteration,
    /// Whether an iteration has ended.
    has_ended: bool,
}

/// An optimizer that shares the scale.
#[derive(Debug)]
pub(crate) struct Member {
    handle: Weak<()>,
    /// Whether an iteration waits for its step: not for a scaler that tests no gradients.
    is_expected: bool,
    /// Whether it has not stepped yet, and others had when it began.
    is_late: bool,
}

impl Member {
    fn is(&self, id: usize) -> bool {
        self.handle.as_ptr() as usize == id
    }

    pub(crate) fn is_there(&self) -> bool {
        self.handle.strong_count() > 0
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_there() && self.is_expected
    }

    /// It tests gradients.
    fn begin(&mut self, is_late: bool) {
        if !std::mem::replace(&mut self.is_expected, true) {
            self.is_late = is_late;
        }
    }
}

/// What a step does to the scale.
#[derive(Debug)]
pub(crate) enum Move {
    /// Backs off these regions, or the scale.
    BackOff(Vec<Arc<str>>),
    /// Ends an iteration that has shown this.
    End(Option<Evidence>),
}

/// The steps of all optimizers between two movements of the scale.
#[derive(Debug, Default)]
pub(crate) struct Iteration {
    reported: Vec<usize>,
    /// What they have shown together, if any says something of the scale.
    pub(crate) seen: Option<Evidence>,
    /// The cause of the last skip.
    pub(crate) cause: Option<SkipCause>,
    /// The regions whose factors are the cause, and not the scale that all share.
    pub(crate) regions: Vec<Arc<str>>,
}

impl Iteration {
    /// Whether some have stepped in it.
    pub(crate) fn is_open(&self) -> bool {
        !self.reported.is_empty()
    }
}

fn id_of(member: &Arc<()>) -> usize {
    Arc::as_ptr(member) as usize
}

impl Members {
    /// Adds one that is not expected yet.
    pub(crate) fn join(&mut self) -> Arc<()> {
        let member = Arc::new(());
        self.all.push(Member {
            handle: Arc::downgrade(&member),
            is_expected: false,
            is_late: false,
        });
        member
    }

    /// From now on an iteration waits for the step of this one. It is counted with those of before if it `begins` after them.
    pub(crate) fn expect(&mut self, member: &Arc<()>, begins: bool) {
        let is_late = begins && self.has_ended;
        if let Some(member) = self.get(id_of(member)) {
            member.begin(is_late);
        }
    }

    /// Whether an iteration has steps of several.
    pub(crate) fn are_several(&self) -> bool {
        self.all.iter().filter(|m| m.is_waited_for()).count() > 1
    }

    pub(crate) fn others(&self, member: &Arc<()>) -> impl Iterator<Item = &Member> {
        let id = id_of(member);
        self.all.iter().filter(move |member| !member.is(id))
    }

    /// Takes what an optimizer's step has shown, none if it says nothing of the scale. What that does, in order.
    pub(crate) fn report(&mut self, member: &Arc<()>, seen: Option<Evidence>) -> Vec<Move> {
        let id = id_of(member);
        let mut moves = Vec::new();
        if self.iteration.reported.contains(&id) {
            moves.push(self.end());
        }
        self.iteration.reported.push(id);
        moves.extend(seen.and_then(|seen| self.observe(seen)));
        // What is kept, no new one has the address of.
        let is_named = |m: &Member| self.iteration.reported.iter().any(|id| m.is(*id));
        self.all.retain(|m| m.is_there() || is_named(m));
        let has_ended = self.has_ended;
        let is_late = self.get(id).is_some_and(|member| {
            member.begin(has_ended);
            std::mem::take(&mut member.is_late)
        });
        let reported = &self.iteration.reported;
        let is_missing = |m: &Member| m.is_waited_for() && !reported.iter().any(|id| m.is(*id));
        // The first step of one that has begun after others belongs to theirs, and not to what they do next.
        if is_late && reported.len() == 1 || !self.all.iter().any(is_missing) {
            moves.push(self.end());
        }
        moves
    }

    fn get(&mut self, id: usize) -> Option<&mut Member> {
        self.all.iter_mut().find(|member| member.is(id))
    }

    fn observe(&mut self, seen: Evidence) -> Option<Move> {
        let joint = seen.after(self.iteration.seen);
        let before = self.iteration.seen.replace(joint);
        let is_first = seen == Evidence::Overflow && before != Some(seen);
        is_first.then(|| Move::BackOff(std::mem::take(&mut self.iteration.regions)))
    }

    fn end(&mut self) -> Move {
        self.has_ended = true;
        Move::End(std::mem::take(&mut self.iteration).seen)
    }
}

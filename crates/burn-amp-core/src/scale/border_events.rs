//! Border events: gradients that came to the border of half precision, and that left it again, in the order of the backward passes. They
//! explain skips. Knows no schedule, and no optimizer.

mod cause;
mod event;

pub(super) use event::Measured;
#[cfg(any(test, feature = "counts"))]
pub use event::READS;
pub(crate) use event::{BorderEvent, EventPlace, OpenRegion};
use event::{MANY, MAX_KEPT, StepOf};

use burn::module::ParamId;
use burn_amp_kernels::PassedGradient;
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};

use crate::lock::locked;
use crate::scale::finding::SkipCause;

/// A cause, and the regions at fault.
pub(crate) type Explanation = (SkipCause, Vec<Arc<str>>);

/// The number of scopes that were opened and of events that there were, of all handles: it gives their order.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the place in that order of what happens now: above 0.
pub(crate) fn next_number() -> u64 {
    COUNT.fetch_add(1, Ordering::Relaxed) + 1
}

/// Threads that are remembered.
const MAX_THREADS: usize = 16;

/// The events of one handle.
#[derive(Debug, Default)]
pub(crate) struct BorderEvents {
    queue: Mutex<Queue>,
    /// Other handles' events, if their scopes were opened on the same threads.
    neighbours: Mutex<Vec<Weak<Self>>>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<BorderEvent>,
    /// The number of values of gradients that are kept.
    kept: usize,
    /// The threads that have tested gradients. What comes on another is for any of them.
    testers: Vec<ThreadId>,
}

thread_local! {
    /// The handle whose scope this thread has opened last. Burn's graphs do not say through which scopes they pass.
    pub(super) static LAST: RefCell<Weak<BorderEvents>> = const { RefCell::new(Weak::new()) };
}

impl BorderEvents {
    /// Adds a gradient that passes in this backward pass, maybe to a parameter: those of a scope's parameters are one event. Others have an order.
    pub(super) fn add(
        &self,
        place: EventPlace,
        parameter: Option<ParamId>,
        pass: u64,
        mut gradient: Measured,
    ) {
        let mut queue = locked(&self.queue);
        queue.kept += gradient.kept_values();
        let device = |of: &[PassedGradient]| of.first().map(PassedGradient::device);
        let mut last = queue.events.iter_mut().rev().take(16);
        let is_joined = parameter.is_some()
            && last.any(|event| match (&mut event.measured, &mut gradient) {
                (Measured::Kept(all), Measured::Kept(one))
                    if event.place == place && event.pass == pass && device(all) == device(one) =>
                {
                    all.append(one);
                    event.parameters.extend(parameter);
                    true
                }
                _ => false,
            });
        if !is_joined {
            queue.events.push_back(BorderEvent {
                number: next_number(),
                pass,
                thread: thread::current().id(),
                place,
                parameters: parameter.into_iter().collect(),
                measured: gradient,
                step: StepOf::Next,
                is_tested: false,
            });
        }
        if queue.kept > MAX_KEPT {
            BorderEvent::limit_kept(&mut queue.events);
            queue.kept = 0;
        }
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> VecDeque<BorderEvent> {
        std::mem::take(&mut *locked(&self.queue)).events
    }

    /// Takes out those that fit.
    pub(crate) fn take_if(&self, fits: impl Fn(&BorderEvent) -> bool) -> VecDeque<BorderEvent> {
        let mut queue = locked(&self.queue);
        let (taken, rest) = queue.events.drain(..).partition(fits);
        queue.events = rest;
        taken
    }

    /// Returns the events of a step with gradients of these parameters, as they explain it: see [`of_skip`](BorderEvent::of_skip).
    pub(super) fn of_step(&self, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        let queue = locked(&self.queue);
        let own = queue.own_passes(ids);
        let events = queue.events.iter().filter(|event| own(event));
        BorderEvent::of_skip(events.cloned().collect())
    }

    /// Returns the same without the events before the last test, if there are any after it.
    pub(crate) fn of_last_passes(&self, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        let mut events = self.of_step(ids);
        if (events.front()).is_some_and(|event| !event.is_tested) {
            events.retain(|event| !event.is_tested);
        }
        events
    }

    /// Returns the events of a micro-batch with gradients of these parameters, which a window keeps until its test: all that no window has. Where
    /// optimizers are several, the `others` may need them too.
    pub(super) fn take_micro_batch(&self, others: bool, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        let mut taken = match others {
            true => self.take_own(ids),
            false => self.take(),
        };
        // The tests of others say nothing of the window.
        taken.iter_mut().for_each(|event| event.is_tested = false);
        taken
    }

    /// Takes out a copy of those of gradients of these parameters. What stays is of no step.
    fn take_own(&self, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        // Under one lock: others add some meanwhile.
        let mut queue = locked(&self.queue);
        let own = queue.own_passes(ids);
        let is_free = |event: &&mut BorderEvent| event.step != StepOf::None && own(event);
        let taken = queue.events.iter_mut().filter(is_free).map(|event| {
            let taken = event.clone();
            event.step = StepOf::None;
            taken
        });
        taken.collect()
    }

    /// Puts back what was taken out.
    pub(crate) fn restore(&self, events: impl IntoIterator<Item = BorderEvent>) {
        locked(&self.queue).events.extend(events);
    }

    /// Forgets the events of passes that have reached one of these parameters, or none at all; those of this thread alone if what others do is of the
    /// next step.
    pub(crate) fn clear(&self, ids: &[ParamId], only_here: bool) {
        let mut queue = locked(&self.queue);
        let (own, here) = (queue.own_passes(ids), thread::current().id());
        let is_meant = |event: &BorderEvent| own(event) && (!only_here || event.thread == here);
        (queue.events).retain(|event| !is_meant(event));
        queue.count_kept();
    }

    /// Gradients of these parameters were tested on this thread: what came before is explained, or explains nothing. Not what other threads that test
    /// gradients have added meanwhile for themselves; nothing of others if that is of the next step.
    pub(super) fn note_test(&self, ids: impl FnOnce() -> Vec<ParamId>, only_here: bool) {
        let mut queue = locked(&self.queue);
        let here = thread::current().id();
        if !queue.testers.contains(&here) {
            let before = (queue.testers.len() + 1).saturating_sub(MAX_THREADS);
            queue.testers.drain(..before);
            queue.testers.push(here);
        }
        let are_others = queue.events.iter().any(|event| queue.is_of_others(event));
        let own = are_others.then(|| queue.own_passes(&ids()));
        let Queue {
            events, testers, ..
        } = &mut *queue;
        for event in events {
            event.is_tested |= match (event.thread == here, &own) {
                (true, _) => true,
                (false, _) if only_here => false,
                (false, Some(own)) => own(event) || !testers.contains(&event.thread),
                (false, None) => true,
            };
        }
    }

    /// An iteration has ended: what came before its last test explains nothing. But where several passes were over, some may be of a step that comes:
    /// these are kept for one more iteration.
    pub(super) fn end_iteration(&self) {
        let mut queue = locked(&self.queue);
        let of = |step| move |event: &&BorderEvent| event.step == step;
        let is_over = |event: &&BorderEvent| event.is_tested;
        let mut next = queue.events.iter().filter(is_over).filter(of(StepOf::Next));
        let first = next.next().map(|event| event.pass);
        let are_several = next.any(|event| Some(event.pass) != first)
            || queue.events.iter().any(|event| of(StepOf::Either)(&event));
        queue.events.retain_mut(|event| {
            let is_over = is_over(&&*event);
            let stays = !is_over || are_several && event.step == StepOf::Next;
            if is_over {
                event.step = StepOf::Either;
            }
            stays
        });
        queue.count_kept();
    }

    /// Puts back the events that a window has kept until its test.
    pub(crate) fn restore_window(&self, window: VecDeque<BorderEvent>) {
        let numbers: HashSet<_> = window.iter().map(|event| event.number).collect();
        let events = &mut locked(&self.queue).events;
        events.retain(|event| !numbers.contains(&event.number));
        events.extend(window.into_iter().map(|mut event| {
            if event.step == StepOf::Next {
                event.step = StepOf::Window;
            }
            event.is_tested = true;
            event
        }));
    }

    /// Notes that gradients are thrown away: those of these parameters, which were tested, or else all that came.
    pub(crate) fn discard(&self, tested: Option<&[ParamId]>) {
        let mut queue = locked(&self.queue);
        let own = queue.own_passes(tested.unwrap_or_default());
        let events = queue.events.iter_mut();
        let events = events.filter(|event| (event.is_tested || tested.is_none()) && own(event));
        events.for_each(|event| event.step = StepOf::None);
    }

    /// Says whether a gradient that is not zero has come to a scope on its way back, before the last test. Waits for the device.
    pub(crate) fn have_arrived(&self) -> bool {
        let events = locked(&self.queue).events.clone().into_iter();
        let is_meant = |event: &BorderEvent| event.is_tested && event.step != StepOf::Either;
        let scopes = events.filter(|event| event.is_scope() && is_meant(event));
        BorderEvent::read_now(scopes)
            .iter()
            .any(BorderEvent::has_arrived)
    }

    /// Folds away those that explain nothing, of many. Waits for the device then.
    pub(super) fn fold_many(&self, wanted: impl Fn(&Arc<OpenRegion>) -> bool) {
        if locked(&self.queue).events.len() < MANY {
            return;
        }
        // Others may add some meanwhile.
        let mut events = std::mem::take(&mut locked(&self.queue).events);
        BorderEvent::fold_many(&mut events, wanted);
        let mut queue = locked(&self.queue);
        events.append(&mut queue.events);
        queue.events = events;
        queue.count_kept();
    }

    /// Remembers the handle whose scope this thread has opened before: one graph may pass both.
    pub(super) fn follow_the_last(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        let last = LAST.replace(this.clone());
        if let Some(other) = last.upgrade() {
            other.add_neighbour(&this);
            self.add_neighbour(&last);
        }
    }

    fn add_neighbour(&self, other: &Weak<Self>) {
        let mut neighbours = locked(&self.neighbours);
        neighbours.retain(|neighbour| neighbour.strong_count() > 0);
        if !neighbours.iter().any(|neighbour| neighbour.ptr_eq(other)) {
            neighbours.push(other.clone());
        }
    }
}

impl Queue {
    fn count_kept(&mut self) {
        let kept = self.events.iter().map(|event| event.measured.kept_values());
        self.kept = kept.sum();
    }

    /// Says whether it comes on another thread that tests gradients: for itself, as long as nothing else is known of its pass.
    fn is_of_others(&self, event: &BorderEvent) -> bool {
        event.thread != thread::current().id() && self.testers.contains(&event.thread)
    }

    /// Finds the events that are of gradients of these parameters, or of all if there are none: not those of passes that have reached others alone. If
    /// there is no such event, a model has got other ids since, by loading a record: then all are.
    fn own_passes(&self, ids: &[ParamId]) -> impl Fn(&BorderEvent) -> bool + use<> {
        let (mut own, mut others) = (HashSet::new(), HashSet::new());
        let first = self.events.front().map(|event| event.pass);
        let are_others = self.events.iter().any(|event| self.is_of_others(event));
        // One pass alone is always own: that of a plain step, which is to cost nothing.
        if are_others || self.events.iter().any(|event| Some(event.pass) != first) {
            let ids: HashSet<_> = ids.iter().collect();
            for event in &self.events {
                match event.parameters.iter().any(|id| ids.contains(id)) {
                    true => own.insert(event.pass),
                    false if event.parameters.is_empty() && !self.is_of_others(event) => continue,
                    false => others.insert(event.pass),
                };
            }
        }
        let is_own =
            move |event: &BorderEvent| own.contains(&event.pass) || !others.contains(&event.pass);
        let is_none = !are_others && !self.events.iter().any(&is_own);
        let all = ids.is_empty() || is_none;
        move |event| all || is_own(event)
    }
}

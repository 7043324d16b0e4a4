//! Border events: gradients that came to the border of half precision, and that left it again, in the order of the backward passes. They
//! explain skips. Knows no schedule, and no optimizer.

mod cause;

use burn::module::ParamId;
use burn_amp_kernels::{EventStatus, PassedGradient, Reading, Status, UnreadEvent};
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};

use crate::{lock::locked, scale::finding::Grounds, scale::loss_scale::Measures};

/// The number of scopes that were opened and of events that there were, of all handles: it gives their order.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the place in that order of what happens now: above 0.
pub(crate) fn next_number() -> u64 {
    COUNT.fetch_add(1, Ordering::Relaxed) + 1
}

/// Events from which on those that explain nothing are folded away.
const MANY: usize = 512;
/// Values of gradients that are kept until a skip asks for them; with more, they are measured: 64 MB in half precision.
const MAX_KEPT: usize = 1 << 25;

/// Threads that are remembered.
const MAX_THREADS: usize = 16;

/// A region of a network whose factor moves, as a scope has entered it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenRegion {
    pub(crate) name: Arc<str>,
    /// The multiple of gradients in it, and that of the regions that enclose it.
    pub(crate) factor: f64,
    pub(crate) outer_factor: f64,
}

/// A region, if there is one.
type Inside = Option<Arc<OpenRegion>>;

/// A place at which a gradient passes on its way back, in this region or in none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EventPlace {
    /// The end of a scope, which was opened at this number.
    Scope(u64, Inside),
    /// The beginning of a part in f32 inside: the gradient comes back to half precision.
    Return(u64, Inside),
    /// The beginning of a scope, or the end of a part in f32 inside: it leaves half precision for the f32 before.
    Left(u64, Inside),
    /// A parameter, for which it leaves half precision.
    Parameter(u64, Inside),
    /// The end of a region: it comes out of another.
    Arrival(Arc<OpenRegion>, Inside),
    /// The beginning of a region, which it leaves for another.
    Departure(Arc<OpenRegion>, Inside),
}

/// A gradient, or several that left a scope for its parameters.
#[derive(Clone, Debug)]
pub(crate) struct BorderEvent {
    /// Its place in the order of the backward passes, and of the scopes that were opened.
    pub(crate) number: u64,
    /// Its backward pass, and the thread that makes it.
    pass: u64,
    thread: ThreadId,
    place: EventPlace,
    /// The parameters of the gradients that leave half precision for some.
    parameters: Vec<ParamId>,
    measured: Measured,
    step: StepOf,
    /// Set once gradients were tested after it: those of its pass, or others.
    is_tested: bool,
}

/// The step that gradients are of, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StepOf {
    /// One that comes.
    Next,
    /// The step of a window, which was tested.
    Window,
    /// The one that was tested, or one that comes: several passes were over before it.
    Either,
    /// No step that comes: they were discarded, or are in a window, which has the event too.
    None,
}

/// A gradient, and how far it is measured.
#[derive(Clone, Debug)]
pub(super) enum Measured {
    /// The gradients themselves, which nobody has looked at.
    Kept(Vec<PassedGradient>),
    OnDevice(Box<UnreadEvent>),
    Read(EventStatus),
}

impl Measured {
    /// Counts the values that are kept.
    fn kept_values(&self) -> usize {
        match self {
            Self::Kept(gradients) => gradients.iter().map(PassedGradient::elements).sum(),
            _ => 0,
        }
    }
}

#[cfg(any(test, feature = "counts"))]
thread_local! {
    /// Counts how often this thread has waited for a device.
    pub static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// One side of a border: f32, or half precision in a region or in none.
type Side<'a> = Option<Option<&'a OpenRegion>>;

impl EventPlace {
    /// Returns the sides that a gradient comes from and goes to.
    fn sides(&self) -> [Side<'_>; 2] {
        match self {
            Self::Scope(_, to) | Self::Return(_, to) => [None, Some(to.as_deref())],
            Self::Left(_, from) | Self::Parameter(_, from) => [Some(from.as_deref()), None],
            Self::Arrival(inside, outside) => [Some(outside.as_deref()), Some(Some(inside))],
            Self::Departure(inside, outside) => [Some(Some(inside)), Some(outside.as_deref())],
        }
    }
}

impl BorderEvent {
    /// Returns those of which a status was read.
    pub(crate) fn read(
        events: impl IntoIterator<Item = Self>,
        statuses: Vec<Option<EventStatus>>,
    ) -> VecDeque<Self> {
        let read = |(event, status): (Self, Option<_>)| {
            let measured = Measured::Read(status?);
            Some(Self { measured, ..event })
        };
        events.into_iter().zip(statuses).filter_map(read).collect()
    }

    /// Reads them in one transfer, and returns those that can be read. Waits for the device, if there is one to wait for.
    pub(super) fn read_now(events: impl IntoIterator<Item = Self>) -> VecDeque<Self> {
        let mut events: Vec<Self> = events.into_iter().filter_map(Self::measured).collect();
        let unread: Vec<_> = events.iter().filter_map(Self::unread).cloned().collect();
        if unread.is_empty() {
            return events.into();
        }
        let reading = Reading::now(Status::default(), unread);
        #[cfg(any(test, feature = "counts"))]
        if !reading.is_there() {
            READS.set(READS.get() + 1);
        }
        let mut statuses = reading.wait(1.0).1.into_iter();
        events.retain_mut(|event| match event.unread() {
            Some(_) => {
                let status = statuses.next().flatten();
                status.map(|status| event.measured = Measured::Read(status)) == Some(())
            }
            None => true,
        });
        events.into()
    }

    /// Measures it; none if that cannot be. Does not wait.
    pub(crate) fn measured(self) -> Option<Self> {
        let measured = match self.measured {
            Measured::Kept(gradients) => {
                Measured::OnDevice(Box::new(PassedGradient::measure(gradients).ok()??))
            }
            known => known,
        };
        Some(Self { measured, ..self })
    }

    /// Measures it, unless it is in the host's own memory, which any thread may look at.
    pub(crate) fn measured_unless_here(self) -> Option<Self> {
        match &self.measured {
            Measured::Kept(gradients) if gradients.iter().all(PassedGradient::is_known_now) => {
                Some(self)
            }
            _ => self.measured(),
        }
    }

    /// Returns the events of a step by which a device can judge it: gradients have come once to a scope without regions. Those that passed its islands
    /// in f32 are left out.
    pub(crate) fn single(events: VecDeque<Self>) -> Option<Vec<Self>> {
        let fits = |event: &Self| match event.place {
            EventPlace::Scope(_, None) => event.unread().is_some(),
            EventPlace::Left(_, None) | EventPlace::Parameter(_, None) => true,
            EventPlace::Return(..) => true,
            _ => false,
        };
        let scopes = events.iter().filter(|event| event.is_scope()).count();
        let is_single = scopes <= 1 && events.iter().all(fits);
        let counts = |event: &Self| !event.is_return();
        is_single.then(|| events.into_iter().filter(counts).collect())
    }

    /// Returns its measures, if they were not read.
    pub(crate) fn unread(&self) -> Option<&UnreadEvent> {
        match &self.measured {
            Measured::OnDevice(event) => Some(event),
            _ => None,
        }
    }

    fn status(&self) -> Option<&EventStatus> {
        match &self.measured {
            Measured::Read(status) => Some(status),
            _ => None,
        }
    }

    /// Says whether gradients came to a scope there.
    pub(crate) fn is_scope(&self) -> bool {
        matches!(self.place, EventPlace::Scope(..))
    }

    /// Says whether gradients came back to a scope there.
    pub(crate) fn is_return(&self) -> bool {
        matches!(self.place, EventPlace::Return(..))
    }

    /// Says whether a gradient that is not zero came to a scope, as far as was read.
    pub(crate) fn has_arrived(&self) -> bool {
        self.is_scope() && self.status().is_some_and(|status| status.max_abs > 0.0)
    }

    /// Says whether it explains an overflow, as far as was read.
    fn is_bad(&self) -> bool {
        (self.status()).is_some_and(|status| status.overflow || !status.gradient_finite)
    }

    /// Says whether one of them explains an overflow. Waits for the device.
    pub(crate) fn explain(events: &[Self]) -> bool {
        let events = Self::read_now(events.iter().cloned());
        events.iter().any(Self::is_bad)
    }

    /// Returns the region that its gradients enter, if these are of a step that comes.
    pub(super) fn entered(&self) -> Option<&Arc<OpenRegion>> {
        match &self.place {
            _ if self.step == StepOf::None => None,
            EventPlace::Scope(_, region) => region.as_ref(),
            EventPlace::Arrival(region, _) => Some(region),
            _ => None,
        }
    }

    /// Returns the region that its gradients enter, and their measures before the region multiplied them, if they were read.
    pub(super) fn measures(&self) -> Option<(&str, Measures)> {
        let (region, status) = (self.entered()?, self.status()?);
        let measures = Measures {
            max_abs: status.max_abs / region.factor,
            elements: status.elements,
            zeros: match status.max_abs == 0.0 && status.gradient_finite {
                true => status.elements,
                false => 0,
            },
            above: 0,
            norm: status.norm / region.factor,
            outer_factor: region.outer_factor,
        };
        Some((&region.name, measures))
    }

    /// The grounds of what the first of these events explains that is bad. They were read.
    pub(super) fn grounds(events: &VecDeque<Self>) -> Grounds {
        match events.iter().find(|event| event.is_bad()) {
            _ if events.iter().all(Self::is_of_no_step) => Grounds::Guess,
            Some(first) if first.is_tested => Grounds::Earlier,
            _ => Grounds::Own,
        }
    }

    /// Says whether gradients were tested after it.
    pub(super) fn is_tested(&self) -> bool {
        self.is_tested
    }

    /// Says whether its gradients were discarded, or are those of another step.
    fn is_of_no_step(&self) -> bool {
        self.step == StepOf::None
    }

    /// Sorts the events that explain a skip: those after the last test, and then those before. Those of discarded gradients, and of others' windows,
    /// count if there is nothing else.
    pub(crate) fn of_skip(mut events: VecDeque<Self>) -> VecDeque<Self> {
        if !events.iter().all(Self::is_of_no_step) {
            events.retain(|event| !event.is_of_no_step());
        }
        let order = |event: &Self| (event.is_tested, event.number);
        events.make_contiguous().sort_by_key(order);
        events
    }

    /// Folds away the older half of many, except for the first that explains a skip, and those that are `wanted`. Waits for the device then.
    pub(super) fn fold_many(
        events: &mut VecDeque<Self>,
        wanted: impl Fn(&Arc<OpenRegion>) -> bool,
    ) {
        if events.len() < MANY {
            return;
        }
        let half = events.len() / 2;
        let older = Self::read_now(events.drain(..half));
        let (mut first, mut arrived) = (HashSet::new(), HashSet::new());
        let kept = older.into_iter().filter(|event| {
            let group = event.step == StepOf::None;
            (event.is_bad() && first.insert(group))
                || (event.has_arrived() && arrived.insert(group))
                || event.entered().is_some_and(&wanted)
        });
        let kept: Vec<_> = kept.collect();
        kept.into_iter()
            .rev()
            .for_each(|event| events.push_front(event));
    }

    /// Measures what many gradients are kept for. Does not wait.
    pub(super) fn limit_kept(events: &mut VecDeque<Self>) {
        if events
            .iter()
            .map(|event| event.measured.kept_values())
            .sum::<usize>()
            > MAX_KEPT
        {
            *events = events.drain(..).filter_map(Self::measured).collect();
        }
    }
}

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
        if let Measured::Kept(gradients) = &gradient {
            queue.kept += gradients
                .iter()
                .map(PassedGradient::elements)
                .sum::<usize>();
        }
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

    /// Forgets all of them.
    pub(super) fn forget(&self) {
        *locked(&self.queue) = Queue::default();
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

    /// Notes that the gradients of these parameters are thrown away, or a window has their events: those alone that were tested, or all that came.
    pub(crate) fn discard(&self, only_tested: bool, ids: &[ParamId]) {
        let mut queue = locked(&self.queue);
        let own = queue.own_passes(ids);
        let events = queue.events.iter_mut();
        let events = events.filter(|event| (event.is_tested || !only_tested) && own(event));
        events.for_each(|event| event.step = StepOf::None);
    }

    /// Says whether a gradient that is not zero has come to a scope on its way back, before the last test. Waits for the device.
    pub(super) fn have_arrived(&self) -> bool {
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
        let mut events = self.take();
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

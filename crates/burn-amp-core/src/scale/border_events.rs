//! Border events: gradients that came to the border of half precision, and that left it again, in the order of the backward passes. They
//! explain skips. Knows no schedule, and no optimizer.

mod cause;

use burn::module::ParamId;
use burn_amp_kernels::{EventStatus, PassedGradient, Reading, Status, UnreadEvent};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::{lock::locked, scale::loss_scale::Measures};

/// How many scopes were opened, and how many events there were, of all handles: their order.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The place in that order of what happens now: above 0.
pub(crate) fn next_number() -> u64 {
    COUNT.fetch_add(1, Ordering::Relaxed) + 1
}

/// Events from which on those that explain nothing are folded away.
const MANY: usize = 512;
/// Values of gradients that are kept until a skip asks for them; with more, they are measured: 64 MB in half precision.
const MAX_KEPT: usize = 1 << 25;

/// A region of a network whose factor moves, as a scope has entered it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenRegion {
    pub(crate) name: Arc<str>,
    /// What gradients are multiplied by in it, and by the regions that enclose it.
    pub(crate) factor: f64,
    pub(crate) outer_factor: f64,
}

/// A region, if there is one.
type Inside = Option<Arc<OpenRegion>>;

/// Where a gradient was met on its way back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EventPlace {
    /// Where it came to a scope, which was opened at this number, and in this region.
    Scope(u64, Inside),
    /// Where it came back to a scope from a part in f32 inside.
    Return(u64, Inside),
    /// Where it left half precision for what was computed before in f32: outside of the scope, or inside.
    Left(u64, Inside),
    /// Where it left half precision for a parameter.
    Parameter(u64, Inside),
    /// Where it came to a region, out of another.
    Arrival(Arc<OpenRegion>, Inside),
    /// Where it left a region, for another.
    Departure(Arc<OpenRegion>, Inside),
}

/// A gradient, or several that left a scope for its parameters.
#[derive(Clone, Debug)]
pub(crate) struct BorderEvent {
    /// In the order of the backward passes, and of the scopes that were opened.
    pub(crate) number: u64,
    /// Its backward pass.
    pass: u64,
    place: EventPlace,
    /// Those that the gradients are of, where they left half precision for parameters.
    parameters: Vec<ParamId>,
    measured: Measured,
    step: StepOf,
}

/// Of which step gradients are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StepOf {
    /// One that comes.
    Next,
    /// That of a window which was tested.
    Window,
    /// The one that was tested, or one that comes: several passes were over before it.
    Either,
    /// None that comes: they were discarded, or are in a window, which has the event too.
    None,
}

/// What is known of a gradient.
#[derive(Clone, Debug)]
enum Measured {
    /// Nothing yet.
    Kept(Vec<PassedGradient>),
    OnDevice(Box<UnreadEvent>),
    Read(EventStatus),
}

#[cfg(any(test, feature = "counts"))]
thread_local! {
    /// How often this thread has waited for a device.
    pub static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl EventPlace {
    /// The scope whose half precision it left.
    fn left(&self) -> Option<u64> {
        match self {
            Self::Left(scope, _) => Some(*scope),
            _ => None,
        }
    }

    /// The region that it enters.
    fn entered(&self) -> Option<&Arc<OpenRegion>> {
        match self {
            Self::Scope(_, region) => region.as_ref(),
            Self::Arrival(region, _) => Some(region),
            _ => None,
        }
    }
}

impl BorderEvent {
    /// Those of which this was read.
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

    /// Those that can be read, as they were read: in one transfer. Waits for the device, if there is one to wait for.
    pub(crate) fn read_now(events: impl IntoIterator<Item = Self>) -> VecDeque<Self> {
        let mut events: Vec<Self> = events.into_iter().filter_map(Self::measured).collect();
        let unread = events.iter().filter_map(Self::unread).cloned();
        let unread: Vec<_> = unread.collect();
        if unread.is_empty() {
            return events.into();
        }
        let reading = Reading::now(Status::default(), unread);
        #[cfg(any(test, feature = "counts"))]
        if !reading.is_there() {
            READS.set(READS.get() + 1);
        }
        let (_, statuses) = reading.wait(1.0);
        let mut statuses = statuses.into_iter();
        events.retain_mut(|event| {
            if event.unread().is_none() {
                return true;
            }
            let status = statuses.next().flatten();
            status.map(|status| event.measured = Measured::Read(status)) == Some(())
        });
        events.into()
    }

    /// As it was measured; none if it cannot be. Does not wait.
    pub(crate) fn measured(self) -> Option<Self> {
        let measured = match self.measured {
            Measured::Kept(gradients) => {
                Measured::OnDevice(Box::new(PassedGradient::measure(gradients).ok()??))
            }
            known => known,
        };
        Some(Self { measured, ..self })
    }

    /// As [`measured`](Self::measured), unless this is the host's own memory, which any thread may look at.
    pub(crate) fn measured_unless_here(self) -> Option<Self> {
        match &self.measured {
            Measured::Kept(gradients) if gradients.iter().all(PassedGradient::is_known_now) => {
                Some(self)
            }
            _ => self.measured(),
        }
    }

    /// Values that it keeps.
    fn kept(&self) -> usize {
        match &self.measured {
            Measured::Kept(gradients) => gradients.iter().map(PassedGradient::elements).sum(),
            _ => 0,
        }
    }

    /// Of a step of one plain scope, and what it has given, if a device can judge that: gradients have come to it once. What passed its islands in
    /// f32 is left out.
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

    /// What was measured of it, if it was not read.
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

    /// Whether gradients came to a scope there.
    pub(crate) fn is_scope(&self) -> bool {
        matches!(self.place, EventPlace::Scope(..))
    }

    /// Whether gradients came back to a scope there.
    pub(crate) fn is_return(&self) -> bool {
        matches!(self.place, EventPlace::Return(..))
    }

    /// Whether a gradient that is not zero came to a scope, as far as was read.
    pub(crate) fn has_arrived(&self) -> bool {
        self.is_scope() && self.status().is_some_and(|status| status.max_abs > 0.0)
    }

    /// Whether it explains an overflow, as far as was read.
    fn is_bad(&self) -> bool {
        (self.status()).is_some_and(|status| status.overflow || !status.gradient_finite)
    }

    /// Whether one of them explains an overflow. Waits for the device.
    pub(crate) fn explain(events: &[Self]) -> bool {
        let events = Self::read_now(events.iter().cloned());
        events.iter().any(Self::is_bad)
    }

    /// The region that it enters, unless its gradients are of no step that comes.
    pub(crate) fn entered(&self) -> Option<&Arc<OpenRegion>> {
        self.place.entered().filter(|_| self.step != StepOf::None)
    }

    /// What came to a region, as it was before the region multiplied it. Waits for the device.
    pub(crate) fn measures(self) -> Option<(Arc<OpenRegion>, Measures)> {
        let region = self.place.entered()?.clone();
        let event = Self::read_now([self]).pop_front()?;
        let (status, factor) = (event.status()?, region.factor);
        let measures = Measures {
            max_abs: status.max_abs / factor,
            elements: status.elements,
            zeros: match status.max_abs == 0.0 && status.gradient_finite {
                true => status.elements,
                false => 0,
            },
            above: 0,
            norm: status.norm / factor,
            outer_factor: region.outer_factor,
        };
        Some((region, measures))
    }

    /// Those that explain a skip, in their order: those after the last test, at this number, and then those before. Those of discarded gradients, and
    /// of others' windows, if there is nothing else.
    pub(crate) fn of_skip(mut events: VecDeque<Self>, tested: u64) -> VecDeque<Self> {
        let is_free = |event: &Self| event.step != StepOf::None;
        if events.iter().any(is_free) {
            events.retain(is_free);
        }
        let order = |event: &Self| (event.number <= tested, event.number);
        events.make_contiguous().sort_by_key(order);
        events
    }

    /// Folds away the older half of many, except for the first that explains a skip, and those that are `wanted`. Waits for the device.
    pub(crate) fn fold(events: &mut VecDeque<Self>, wanted: impl Fn(&Arc<OpenRegion>) -> bool) {
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

    /// Whether there are so many events that they should be folded.
    pub(crate) fn are_many(count: usize) -> bool {
        count >= MANY
    }

    /// Measures what many gradients are kept for. Does not wait.
    pub(crate) fn limit_kept(events: &mut VecDeque<Self>) {
        if events.iter().map(Self::kept).sum::<usize>() > MAX_KEPT {
            *events = events.drain(..).filter_map(Self::measured).collect();
        }
    }
}

/// The events of one handle.
#[derive(Debug, Default)]
pub(crate) struct BorderEvents {
    queue: Mutex<Queue>,
    /// Those of other handles, whose scopes were opened on the same threads.
    neighbours: Mutex<Vec<Weak<Self>>>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<BorderEvent>,
    /// Values of gradients that are kept.
    kept: usize,
}

thread_local! {
    /// The handle whose scope this thread has opened last. Burn's graphs do not say through which scopes they pass.
    static LAST: RefCell<Weak<BorderEvents>> = const { RefCell::new(Weak::new()) };
}

impl BorderEvents {
    /// Adds one that was measured now.
    pub(crate) fn add(&self, place: EventPlace, event: UnreadEvent) {
        let pass = event.pass();
        locked(&self.queue).push(place, pass, Measured::OnDevice(Box::new(event)));
    }

    /// Adds a gradient that passes, maybe of a parameter, to be measured where it is asked for.
    pub(crate) fn keep(
        &self,
        place: EventPlace,
        parameter: Option<ParamId>,
        gradient: PassedGradient,
    ) {
        let mut queue = locked(&self.queue);
        queue.kept += gradient.elements();
        let (pass, device) = (gradient.pass(), gradient.device());
        let joins = |event: &&mut BorderEvent| {
            let is_there = |other: &PassedGradient| other.device() == device;
            event.place == place
                && event.pass == pass
                && matches!(&event.measured, Measured::Kept(others) if others.first().is_some_and(is_there))
        };
        // Those of a scope's parameters are one event. Others have an order.
        let last = match place {
            EventPlace::Parameter(..) => queue.events.iter_mut().rev().take(16).find(joins),
            _ => None,
        };
        let event = match last {
            Some(event) => {
                if let Measured::Kept(others) = &mut event.measured {
                    others.push(gradient);
                }
                event
            }
            None => queue.push(place, pass, Measured::Kept(vec![gradient])),
        };
        event.parameters.extend(parameter);
        if queue.kept > MAX_KEPT {
            BorderEvent::limit_kept(&mut queue.events);
            queue.kept = 0;
        }
    }

    pub(crate) fn len(&self) -> usize {
        locked(&self.queue).events.len()
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

    /// Those of a step with gradients of these parameters, as they explain it: see [`of_skip`](BorderEvent::of_skip).
    pub(crate) fn of_step(&self, tested: u64, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        let queue = locked(&self.queue);
        let own = queue.own_passes(ids);
        let events = queue.events.iter().filter(|event| own(event));
        BorderEvent::of_skip(events.cloned().collect(), tested)
    }

    /// As [`of_step`](Self::of_step), without those before the last test, if there are any after it.
    pub(crate) fn of_last_passes(&self, tested: u64, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        let mut events = self.of_step(tested, ids);
        if events.iter().any(|event| event.number > tested) {
            events.retain(|event| event.number > tested);
        }
        events
    }

    /// As [`of_step`](Self::of_step), and takes them out with what else is of these parameters: a skip is explained by them.
    pub(crate) fn take_for_skip(&self, tested: u64, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        let events = self.of_step(tested, ids);
        self.clear(u64::MAX, ids);
        events
    }

    /// Those of a micro-batch with gradients of these parameters, which a window keeps until its test: all that no window has. Where optimizers are
    /// several, the `others` may need them too.
    pub(crate) fn take_micro_batch(&self, others: bool, ids: &[ParamId]) -> VecDeque<BorderEvent> {
        if !others {
            return self.take();
        }
        let mut queue = locked(&self.queue);
        let own = queue.own_passes(ids);
        let is_free = |event: &&BorderEvent| event.step != StepOf::None && own(event);
        let taken = queue.events.iter().filter(is_free).cloned().collect();
        queue.claim(u64::MAX, own);
        taken
    }

    /// Puts back what was taken out.
    pub(crate) fn restore(&self, events: impl IntoIterator<Item = BorderEvent>) {
        locked(&self.queue).events.extend(events);
    }

    /// Forgets those up to this number, of passes that have reached one of these parameters, or none at all.
    pub(crate) fn clear(&self, until: u64, ids: &[ParamId]) {
        let mut queue = locked(&self.queue);
        let own = queue.own_passes(ids);
        (queue.events).retain(|event| event.number > until || !own(event));
        queue.count_kept();
    }

    /// Forgets all of them.
    pub(crate) fn forget(&self) {
        *locked(&self.queue) = Queue::default();
    }

    /// An iteration has ended, whose last test was at this number: what came before it explains nothing. But where several passes were over,
    /// some may be of a step that comes: these are kept for one more iteration.
    pub(crate) fn end_iteration(&self, tested: u64) {
        let mut queue = locked(&self.queue);
        let until = |event: &&BorderEvent| event.number <= tested;
        let is = |step| move |event: &&BorderEvent| event.step == step;
        let before = queue.events.iter().filter(until);
        let passes: HashSet<_> = (before.filter(is(StepOf::Next)))
            .map(|event| event.pass)
            .collect();
        let are_several = passes.len() > 1 || queue.events.iter().any(|e| is(StepOf::Either)(&e));
        let stays = |event: &BorderEvent| are_several && event.step == StepOf::Next;
        (queue.events).retain(|event| event.number > tested || stays(event));
        for event in queue.events.iter_mut().filter(|e| e.number <= tested) {
            event.step = StepOf::Either;
        }
        queue.count_kept();
    }

    /// Puts back those that a window has kept until its test.
    pub(crate) fn restore_window(&self, window: VecDeque<BorderEvent>) {
        let numbers: HashSet<_> = window.iter().map(|event| event.number).collect();
        let events = &mut locked(&self.queue).events;
        events.retain(|event| !numbers.contains(&event.number));
        events.extend(window.into_iter().map(|mut event| {
            if event.step == StepOf::Next {
                event.step = StepOf::Window;
            }
            event
        }));
    }

    /// The gradients of these parameters that came up to this number are thrown away.
    pub(crate) fn discard(&self, until: u64, ids: &[ParamId]) {
        let mut queue = locked(&self.queue);
        let own = queue.own_passes(ids);
        queue.claim(until, own);
    }

    /// Whether a gradient that is not zero has come to a scope on its way back, up to this number. Waits for the device.
    pub(crate) fn have_arrived(&self, until: u64) -> bool {
        let events = locked(&self.queue).events.clone().into_iter();
        let is_meant = |event: &BorderEvent| event.number <= until && event.step != StepOf::Either;
        let scopes = events.filter(|event| event.is_scope() && is_meant(event));
        BorderEvent::read_now(scopes)
            .iter()
            .any(BorderEvent::has_arrived)
    }

    /// Folds away those that explain nothing, of many. Waits for the device then.
    pub(crate) fn fold(&self, wanted: impl Fn(&Arc<OpenRegion>) -> bool) {
        // Others may add some meanwhile.
        let mut events = self.take();
        BorderEvent::fold(&mut events, wanted);
        let mut queue = locked(&self.queue);
        events.append(&mut queue.events);
        queue.events = events;
        queue.count_kept();
    }

    /// Remembers the handle whose scope this thread has opened before: one graph may pass both.
    pub(crate) fn follow_the_last(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        LAST.with_borrow_mut(|last| {
            if last.ptr_eq(&this) {
                return;
            }
            if let Some(other) = last.upgrade() {
                other.add_neighbour(&this);
                self.add_neighbour(last);
            }
            *last = this;
        });
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
    fn push(&mut self, place: EventPlace, pass: u64, measured: Measured) -> &mut BorderEvent {
        self.events.push_back(BorderEvent {
            number: next_number(),
            pass,
            place,
            parameters: Vec::new(),
            measured,
            step: StepOf::Next,
        });
        self.events.back_mut().expect("one was added")
    }

    fn count_kept(&mut self) {
        self.kept = self.events.iter().map(BorderEvent::kept).sum();
    }

    /// Which events are of gradients of these parameters, or of all if there are none: not those of passes that have reached others alone. If
    /// there is no such event, a model has got other ids since, by loading a record: then all are.
    fn own_passes(&self, ids: &[ParamId]) -> impl Fn(&BorderEvent) -> bool + use<> {
        let mut passes = HashMap::new();
        let first = self.events.front().map(|event| event.pass);
        // One pass alone is always own: that of a plain step, which is to cost nothing.
        if self.events.iter().any(|event| Some(event.pass) != first) {
            let ids: HashSet<_> = ids.iter().collect();
            let given = self.events.iter().filter(|e| !e.parameters.is_empty());
            for event in given {
                let is_own = passes.entry(event.pass).or_insert(false);
                *is_own = *is_own || event.parameters.iter().any(|id| ids.contains(id));
            }
        }
        let others = passes.into_iter().filter(|(_, is_own)| !is_own);
        let others: HashSet<_> = others.map(|(pass, _)| pass).collect();
        let is_own = move |event: &BorderEvent| !others.contains(&event.pass);
        let all = ids.is_empty() || !self.events.iter().any(&is_own);
        move |event| all || is_own(event)
    }

    fn claim(&mut self, until: u64, own: impl Fn(&BorderEvent) -> bool) {
        let events = self.events.iter_mut();
        let events = events.filter(|event| event.number <= until && own(event));
        events.for_each(|event| event.step = StepOf::None);
    }
}

//! Border events: gradients that came to the border of half precision, and that left it again, in the order of the backward passes. They
//! explain skips. Knows no schedule, and no optimizer.

mod cause;

use burn_amp_kernels::{EventStatus, PassedGradient, Reading, Status, UnreadEvent};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::{cell::RefCell, collections::HashSet, collections::VecDeque};

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
    place: EventPlace,
    measured: Measured,
    /// Whether it is of no step that comes: its gradients were discarded, or are in a window, which has it too.
    is_claimed: bool,
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
        self.place.entered().filter(|_| !self.is_claimed)
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

    /// Those that explain a skip: of discarded gradients, and of others' windows, if there is nothing else.
    fn of_skip(mut events: VecDeque<Self>) -> VecDeque<Self> {
        if events.iter().any(|event| !event.is_claimed) {
            events.retain(|event| !event.is_claimed);
        }
        events
    }

    /// Folds away the older half of many, except for the first that explains a skip, and those that are `wanted`. Waits for the device.
    pub(crate) fn fold(events: &mut VecDeque<Self>, wanted: impl Fn(&Arc<OpenRegion>) -> bool) {
        let half = events.len() / 2;
        let older = Self::read_now(events.drain(..half));
        let (mut first, mut arrived) = (HashSet::new(), HashSet::new());
        let kept = older.into_iter().filter(|event| {
            let group = event.is_claimed;
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
    /// Adds one that was measured now. Returns how many there are.
    pub(crate) fn add(&self, place: EventPlace, event: UnreadEvent) -> usize {
        let mut queue = locked(&self.queue);
        queue.push(place, Measured::OnDevice(Box::new(event)));
        queue.events.len()
    }

    /// Adds a gradient that passes, to be measured where it is asked for.
    pub(crate) fn keep(&self, place: EventPlace, gradient: PassedGradient) {
        let mut queue = locked(&self.queue);
        queue.kept += gradient.elements();
        let device = gradient.device();
        let joins = |event: &&mut BorderEvent| {
            let is_there = |other: &PassedGradient| other.device() == device;
            event.place == place
                && matches!(&event.measured, Measured::Kept(others) if others.first().is_some_and(is_there))
        };
        // Those of a scope's parameters are one event. Others have an order.
        let last = match place {
            EventPlace::Parameter(..) => queue.events.iter_mut().rev().take(16).find(joins),
            _ => None,
        };
        match last.map(|event| &mut event.measured) {
            Some(Measured::Kept(others)) => others.push(gradient),
            _ => queue.push(place, Measured::Kept(vec![gradient])),
        }
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

    /// Those of a step: after the last test of gradients, at this number, if there are any.
    pub(crate) fn of_step(&self, tested: u64) -> VecDeque<BorderEvent> {
        let mut events = locked(&self.queue).events.clone();
        let is_new = |event: &BorderEvent| event.number > tested && !event.is_claimed;
        if events.iter().any(is_new) {
            events.retain(is_new);
        }
        BorderEvent::of_skip(events)
    }

    /// As [`of_step`](Self::of_step), and takes all out, which a skip has explained.
    pub(crate) fn take_for_skip(&self, tested: u64) -> VecDeque<BorderEvent> {
        let events = self.of_step(tested);
        drop(self.take());
        events
    }

    /// Those of a micro-batch, which a window keeps until its test: all that no window has. Where optimizers are several, the `others` may
    /// need them too.
    pub(crate) fn take_micro_batch(&self, others: bool) -> VecDeque<BorderEvent> {
        if !others {
            return self.take();
        }
        let mut queue = locked(&self.queue);
        let own = queue.events.iter().filter(|event| !event.is_claimed);
        let own = own.cloned().collect();
        queue.claim(u64::MAX);
        own
    }

    /// Puts back what was taken out.
    pub(crate) fn restore(&self, events: impl IntoIterator<Item = BorderEvent>) {
        locked(&self.queue).events.extend(events);
    }

    /// Forgets those up to this number.
    pub(crate) fn clear(&self, until: u64) {
        let mut queue = locked(&self.queue);
        queue.events.retain(|event| event.number > until);
        queue.kept = queue.events.iter().map(BorderEvent::kept).sum();
    }

    /// Puts back those that a window has kept until its test.
    pub(crate) fn restore_window(&self, window: VecDeque<BorderEvent>) {
        let numbers: HashSet<_> = window.iter().map(|event| event.number).collect();
        let events = &mut locked(&self.queue).events;
        events.retain(|event| !numbers.contains(&event.number));
        events.extend(window);
    }

    /// The gradients that came up to this number are thrown away.
    pub(crate) fn discard(&self, until: u64) {
        locked(&self.queue).claim(until);
    }

    /// Whether a gradient that is not zero has come to a scope on its way back, up to this number. Waits for the device.
    pub(crate) fn have_arrived(&self, until: u64) -> bool {
        let events = locked(&self.queue).events.clone().into_iter();
        let scopes = events.filter(|event| event.is_scope() && event.number <= until);
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
        queue.kept = events.iter().map(BorderEvent::kept).sum();
        queue.events = events;
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
    fn push(&mut self, place: EventPlace, measured: Measured) {
        self.events.push_back(BorderEvent {
            number: next_number(),
            place,
            measured,
            is_claimed: false,
        });
    }

    fn claim(&mut self, until: u64) {
        let events = self.events.iter_mut();
        (events.filter(|event| event.number <= until)).for_each(|event| event.is_claimed = true);
    }
}

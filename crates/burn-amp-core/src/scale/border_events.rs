//! Border events: gradients that came to the border of half precision, measured on the device, in the order of the backward passes. They
//! explain skips. Knows no schedule, and no optimizer.

use burn_amp_kernels::{EventStatus, UnreadEvent};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::{cell::RefCell, collections::HashSet, collections::VecDeque, ops::Range};

use crate::{lock::locked, scale::loss_scale::Measures, scale::loss_scale::SkipCause};

/// How many scopes were opened, and how many events there were, of all handles: their order.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The place in that order of what happens now: above 0.
pub(crate) fn next_number() -> u64 {
    COUNT.fetch_add(1, Ordering::Relaxed) + 1
}

/// Events that are remembered: of graphs whose gradients nobody steps on, the oldest are forgotten.
pub(crate) const MAX_EVENTS: usize = 1024;

/// A region of a network whose factor moves, as a scope has entered it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenRegion {
    pub(crate) name: Arc<str>,
    /// What gradients are multiplied by in it, and by the regions that enclose it.
    pub(crate) factor: f64,
    pub(crate) outer_factor: f64,
}

/// Where a gradient was measured on its way back.
#[derive(Clone, Debug)]
pub(crate) enum EventPlace {
    /// Where it came to a scope, which was opened at this number, and in this region.
    Scope(u64, Option<Arc<OpenRegion>>),
    /// Where it came to a region, out of another.
    Arrival(Arc<OpenRegion>, Option<Arc<OpenRegion>>),
    /// Where it left a region, for another.
    Departure(Arc<OpenRegion>, Option<Arc<OpenRegion>>),
}

/// A gradient that was measured.
#[derive(Clone, Debug)]
pub(crate) struct BorderEvent {
    /// In the order of the backward passes, and of the scopes that were opened.
    pub(crate) number: u64,
    place: EventPlace,
    measured: Measured,
    /// Whether it came in a backward pass whose gradients were discarded.
    is_discarded: bool,
}

/// What was measured of a gradient.
#[derive(Clone, Debug)]
enum Measured {
    OnDevice(Box<UnreadEvent>),
    Read(EventStatus),
}

#[cfg(any(test, feature = "counts"))]
thread_local! {
    /// How often this thread has waited for a device.
    pub static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl Measured {
    fn read(self) -> Option<EventStatus> {
        match self {
            Self::OnDevice(event) => {
                #[cfg(any(test, feature = "counts"))]
                READS.set(READS.get() + 1);
                event.read()
            }
            Self::Read(status) => Some(status),
        }
    }
}

impl EventPlace {
    fn is_scope(&self) -> bool {
        matches!(self, Self::Scope(..))
    }

    /// The region that it enters.
    fn entered(&self) -> Option<&Arc<OpenRegion>> {
        match self {
            Self::Scope(_, region) => region.as_ref(),
            Self::Arrival(region, _) => Some(region),
            Self::Departure(..) => None,
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

    /// The single event of a step, if there is at most one, of a plain scope: a device can judge that.
    pub(crate) fn single(events: &VecDeque<Self>) -> Option<Option<Self>> {
        let fits = |event: &Self| {
            matches!(event.place, EventPlace::Scope(_, None)) && event.unread().is_some()
        };
        let is_single = events.len() <= 1 && events.iter().all(fits);
        is_single.then(|| events.front().cloned())
    }

    /// As it was read; none if it cannot be. Waits for the device.
    pub(crate) fn read_now(self) -> Option<Self> {
        let measured = Measured::Read(self.measured.read()?);
        Some(Self { measured, ..self })
    }

    /// What was measured of it, if it was not read.
    pub(crate) fn unread(&self) -> Option<&UnreadEvent> {
        match &self.measured {
            Measured::OnDevice(event) => Some(event),
            Measured::Read(_) => None,
        }
    }

    /// Whether a gradient that is not zero came to a scope, as far as was read.
    pub(crate) fn has_arrived(&self) -> bool {
        self.place.is_scope()
            && matches!(self.measured, Measured::Read(status) if status.max_abs > 0.0)
    }

    /// The region that it enters, unless its gradients were discarded.
    pub(crate) fn entered(&self) -> Option<&Arc<OpenRegion>> {
        self.place.entered().filter(|_| !self.is_discarded)
    }

    /// What came to a region, as it was before the region multiplied it. Waits for the device.
    pub(crate) fn measures(self) -> Option<(Arc<OpenRegion>, Measures)> {
        let region = self.place.entered()?.clone();
        let status = self.measured.read()?;
        let factor = region.factor;
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
}

/// The events of one handle.
#[derive(Debug, Default)]
pub(crate) struct BorderEvents {
    events: Mutex<VecDeque<BorderEvent>>,
    /// How many there ever were.
    added: AtomicUsize,
    /// Those of other handles, whose scopes were opened on the same threads.
    neighbours: Mutex<Vec<Weak<Self>>>,
}

thread_local! {
    /// The handle whose scope this thread has opened last. Burn's graphs do not say through which scopes they pass.
    static LAST: RefCell<Weak<BorderEvents>> = const { RefCell::new(Weak::new()) };
}

impl BorderEvents {
    /// Adds one that was measured now. Returns how many there are, and how many there ever were.
    pub(crate) fn add(&self, place: EventPlace, event: UnreadEvent) -> [usize; 2] {
        let mut events = locked(&self.events);
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(BorderEvent {
            number: next_number(),
            place,
            measured: Measured::OnDevice(Box::new(event)),
            is_discarded: false,
        });
        [events.len(), self.added.fetch_add(1, Ordering::Relaxed) + 1]
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> VecDeque<BorderEvent> {
        std::mem::take(&mut *locked(&self.events))
    }

    /// Takes out those that fit.
    pub(crate) fn take_if(&self, fits: impl Fn(&BorderEvent) -> bool) -> VecDeque<BorderEvent> {
        let mut events = locked(&self.events);
        let (taken, rest) = std::mem::take(&mut *events).into_iter().partition(fits);
        *events = rest;
        taken
    }

    /// Takes out those that explain a skip.
    pub(crate) fn take_for_skip(&self) -> VecDeque<BorderEvent> {
        let mut events = self.take();
        // Those of discarded gradients count if there is nothing else: they may be of another optimizer's step.
        if events.iter().any(|event| !event.is_discarded) {
            events.retain(|event| !event.is_discarded);
        }
        events
    }

    /// Puts back what was taken out.
    pub(crate) fn restore(&self, events: impl IntoIterator<Item = BorderEvent>) {
        locked(&self.events).extend(events);
    }

    pub(crate) fn clear(&self) {
        locked(&self.events).clear();
    }

    /// Handles on all of them.
    pub(crate) fn cloned(&self) -> VecDeque<BorderEvent> {
        locked(&self.events).clone()
    }

    /// Puts back those that a window has kept until its test.
    pub(crate) fn restore_window(&self, window: Vec<BorderEvent>) {
        let numbers: HashSet<_> = window.iter().map(|event| event.number).collect();
        let mut events = locked(&self.events);
        events.retain(|event| !numbers.contains(&event.number));
        events.extend(window);
    }

    /// The gradients since the last step, or micro-batch, are thrown away.
    pub(crate) fn discard(&self) {
        let mut events = locked(&self.events);
        (events.iter_mut()).for_each(|event| event.is_discarded = true);
    }

    /// Whether a gradient that is not zero has come to a scope on its way back. Waits for the device.
    pub(crate) fn take_arrived(&self) -> bool {
        let scopes = self.take().into_iter();
        let scopes = scopes.filter(|event| event.place.is_scope());
        let mut statuses = scopes.filter_map(|event| event.measured.read());
        statuses.any(|status| status.max_abs > 0.0)
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

    /// Whether a gradient came to another handle's scope `between` the opening of a scope here and a NaN that came to that, and the last was
    /// finite: the loss is not the cause of the NaN then. Waits for the device.
    fn came_finite_to_others(&self, between: Range<u64>) -> bool {
        let is_before = |event: &&BorderEvent| event.number < between.end && event.place.is_scope();
        let last = |other: Arc<Self>| {
            let others = locked(&other.events);
            let last = others.iter().rev().find(is_before)?;
            (last.number >= between.start).then(|| last.measured.clone())
        };
        let neighbours = locked(&self.neighbours).clone();
        let mut last = neighbours
            .iter()
            .filter_map(|other| last(other.upgrade()?)?.read());
        last.any(|status| status.gradient_finite)
    }

    /// The first event that explains an overflow, and the region in which it was; none if all that was measured was finite. Waits for the device.
    pub(crate) fn first_cause(
        &self,
        events: VecDeque<BorderEvent>,
    ) -> Option<(SkipCause, Option<Arc<str>>)> {
        let mut events = Vec::from(events);
        events.sort_by_key(|event| event.number);
        let read = |event: BorderEvent| Some((event.number, event.place, event.measured.read()?));
        let events: Vec<_> = events.into_iter().filter_map(read).collect();
        let scale = |region: Option<&Arc<OpenRegion>>| {
            let name = region.map(|region| region.name.clone());
            Some((SkipCause::Scale, name))
        };
        let loss = |output_finite| Some((SkipCause::Loss { output_finite }, None));
        // No scale is in a forward pass. An output that is infinite by design, a mask, has a finite gradient.
        if events.iter().any(|(_, place, status)| {
            place.is_scope() && !status.output_finite && !status.gradient_finite
        }) {
            return loss(false);
        }
        // A backward pass meets scopes from the last to the first: a later one is the begin of another pass.
        let (mut first, mut last) = (0, 0);
        for (number, place, status) in &events {
            // The region that a gradient comes out of, and that which it goes into.
            let (before, after) = match place {
                EventPlace::Scope(opened, region) => {
                    if *opened > last {
                        first = *opened;
                    }
                    last = *opened;
                    if !status.gradient_finite && *opened == first {
                        return match self.came_finite_to_others(*opened..*number) {
                            true => Some((SkipCause::OtherScale, None)),
                            false => loss(true),
                        };
                    }
                    // What is not finite here has become so in a scope that was before.
                    (None, region.as_ref())
                }
                EventPlace::Arrival(inside, outside) => (outside.as_ref(), Some(inside)),
                EventPlace::Departure(inside, outside) => (Some(inside), outside.as_ref()),
            };
            if !status.gradient_finite {
                return scale(before);
            }
            if status.overflow {
                return scale(after);
            }
        }
        None
    }
}

//! A border event: a gradient that came to the border of half precision, or left it, and the step that it is of.

use burn::module::ParamId;
use burn_amp_kernels::{EventStatus, PassedGradient, Reading, Status, UnreadEvent};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use super::{Explanation, next_number};
use crate::scale::loss_scale::Measures;

/// Events from which on those that explain nothing are folded away.
pub(super) const MANY: usize = 512;
/// Values of gradients that are kept until a skip asks for them; with more, they are measured: 64 MB in half precision.
pub(super) const MAX_KEPT: usize = 1 << 25;

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
    pub(super) pass: u64,
    pub(super) thread: ThreadId,
    pub(super) place: EventPlace,
    /// The parameters of the gradients that leave half precision for some.
    pub(super) parameters: Vec<ParamId>,
    pub(super) measured: Measured,
    pub(super) step: StepOf,
    /// Set once gradients were tested after it: those of its pass, or others.
    pub(in crate::scale) is_tested: bool,
}

/// The step that gradients are of, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StepOf {
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
pub(in crate::scale) enum Measured {
    /// The gradients themselves, which nobody has looked at.
    Kept(Vec<PassedGradient>),
    OnDevice(Box<UnreadEvent>),
    Read(EventStatus),
    /// One that overflowed, whose cause was found before.
    Explained(Explanation),
}

impl Measured {
    /// Counts the values that are kept.
    pub(super) fn kept_values(&self) -> usize {
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
pub(super) type Side<'a> = Option<Option<&'a OpenRegion>>;

impl EventPlace {
    /// Returns the sides that a gradient comes from and goes to.
    pub(super) fn sides(&self) -> [Side<'_>; 2] {
        match self {
            Self::Scope(_, to) | Self::Return(_, to) => [None, Some(to.as_deref())],
            Self::Left(_, from) | Self::Parameter(_, from) => [Some(from.as_deref()), None],
            Self::Arrival(inside, outside) => [Some(outside.as_deref()), Some(Some(inside))],
            Self::Departure(inside, outside) => [Some(Some(inside)), Some(outside.as_deref())],
        }
    }
}

impl BorderEvent {
    /// What overflowed before all that comes, and why.
    pub(crate) fn explained(explanation: Explanation) -> Self {
        Self {
            number: next_number(),
            pass: 0,
            thread: thread::current().id(),
            place: EventPlace::Left(0, None),
            parameters: Vec::new(),
            measured: Measured::Explained(explanation),
            step: StepOf::Next,
            is_tested: false,
        }
    }

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
    pub(in crate::scale) fn read_now(events: impl IntoIterator<Item = Self>) -> VecDeque<Self> {
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

    pub(super) fn status(&self) -> Option<&EventStatus> {
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
    pub(super) fn is_bad(&self) -> bool {
        match &self.measured {
            Measured::Read(status) => status.overflow || !status.gradient_finite,
            Measured::Explained(_) => true,
            _ => false,
        }
    }

    /// Says whether it is of this thread, or of all: what is explained came before them.
    pub(super) fn is_of(&self, thread: ThreadId) -> bool {
        self.thread == thread || matches!(self.measured, Measured::Explained(_))
    }

    /// Says whether one of them explains an overflow. Waits for the device.
    pub(crate) fn explain(events: &[Self]) -> bool {
        let events = Self::read_now(events.iter().cloned());
        events.iter().any(Self::is_bad)
    }

    /// Returns the region that its gradients enter, if these are of a step that comes.
    pub(in crate::scale) fn entered(&self) -> Option<&Arc<OpenRegion>> {
        match &self.place {
            _ if self.step == StepOf::None => None,
            EventPlace::Scope(_, region) => region.as_ref(),
            EventPlace::Arrival(region, _) => Some(region),
            _ => None,
        }
    }

    /// Returns the region that its gradients enter, and their measures before the region multiplied them, if they were read.
    pub(in crate::scale) fn measures(&self) -> Option<(&str, Measures)> {
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

    /// Says whether its gradients were discarded, or are those of another step.
    pub(super) fn is_of_no_step(&self) -> bool {
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
    pub(in crate::scale) fn fold_many(
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
        let mut kept: VecDeque<_> = kept.collect();
        kept.append(events);
        *events = kept;
    }

    /// Measures what many gradients are kept for. Does not wait.
    pub(in crate::scale) fn limit_kept(events: &mut VecDeque<Self>) {
        let kept = events.iter().map(|event| event.measured.kept_values());
        if kept.sum::<usize>() > MAX_KEPT {
            *events = events.drain(..).filter_map(Self::measured).collect();
        }
    }
}

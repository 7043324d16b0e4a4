//! The loss scale that all scopes of one `MixedPrecision` and its optimizers share, and what crossed its border.

use burn_amp_kernels::{Crossing, CrossingStatus, ScaleState};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crate::{
    adaloss::Statistics,
    ahead::Ahead,
    loss_scale::{LossScale, Measures, Observation, StepOutcome},
    rescale::{Driven, Part, PartState},
};

/// Its inverse must be normal in f32, or gradients lose digits.
const MAX_SCALE: f32 = f32::from_bits(253 << 23); // 2^126
const MIN_SCALE: f32 = f32::from_bits(1 << 23); // 2^-126

/// Crossings that are remembered: of graphs whose gradients nobody steps on, the oldest are forgotten.
const MAX_CROSSINGS: usize = 1024;

/// One schedule for all scopes and optimizers of a `MixedPrecision`.
#[derive(Debug)]
pub(crate) struct LiveScale {
    /// The bits of the scale, which every scope reads.
    scale: AtomicU32,
    /// How many scopes were opened.
    opened: AtomicU64,
    /// How many steps were skipped, whatever for.
    skips: AtomicU64,
    state: Mutex<State>,
    crossings: Mutex<VecDeque<Noted>>,
    /// How many gradients were measured.
    noted: AtomicU64,
    /// The scale as the device moves it, while there are steps of which the host has not heard.
    ahead: Mutex<Option<Arc<Ahead>>>,
    /// In which part of the network a parameter was read last, if its factor moves.
    readers: Mutex<HashMap<Arc<str>, Arc<str>>>,
}

#[derive(Debug)]
struct State {
    schedule: LossScale,
    /// The parts whose factors move, by name.
    parts: BTreeMap<Arc<str>, Part>,
    /// The optimizers that share the scale.
    members: Vec<Weak<()>>,
    iteration: Iteration,
}

/// The steps of all optimizers between two movements of the scale.
#[derive(Debug, Default)]
struct Iteration {
    reported: Vec<usize>,
    clean: bool,
    /// What the gradients of all clean steps have shown.
    measures: Option<Measures>,
    backed_off: bool,
    /// What the last skip was blamed on.
    blame: Option<Blame>,
    /// The parts whose factors are to blame, and not the scale that all share.
    parts: Vec<Arc<str>>,
}

/// A part of a network whose factor moves, as a scope has entered it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Region {
    pub(crate) part: Arc<str>,
    /// What gradients are multiplied by in it, and by the parts around it.
    pub(crate) factor: f64,
    pub(crate) around: f64,
}

/// Where a gradient was measured on its way back.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Where it came to a scope, of this number and in this part.
    Scope(u64, Option<Arc<Region>>),
    /// Where it came to a part, out of another.
    Arrival(Arc<Region>, Option<Arc<Region>>),
    /// Where it left a part, for another.
    Departure(Arc<Region>, Option<Arc<Region>>),
}

/// A gradient that was measured.
#[derive(Debug)]
pub(crate) struct Noted {
    /// In the order of the backward passes.
    number: u64,
    place: Place,
    found: Found,
}

impl Noted {
    /// What a device can judge by itself: the gradient of one scope, which has no parts. Given back otherwise.
    pub(crate) fn only(mut noted: VecDeque<Self>) -> Result<Option<OneCrossing>, VecDeque<Self>> {
        let (1, Some(Place::Scope(_, None))) =
            (noted.len(), noted.front().map(|noted| &noted.place))
        else {
            return match noted.is_empty() {
                true => Ok(None),
                false => Err(noted),
            };
        };
        match noted.pop_front() {
            Some(Self {
                number,
                place,
                found: Found::Waiting(crossing),
            }) => Ok(Some(((number, place), *crossing))),
            other => Err(other.into_iter().collect()),
        }
    }

    /// As it was before [`only`](Self::only).
    pub(crate) fn again(((number, place), crossing): OneCrossing) -> Self {
        Self {
            number,
            place,
            found: Found::Waiting(Box::new(crossing)),
        }
    }
}

/// A gradient that came to a scope, and what was found in it, on the device still.
pub(crate) type OneCrossing = ((u64, Place), Crossing);

/// What the scopes of an iteration leave for its step.
#[derive(Debug)]
pub(crate) struct Passage {
    opened: u64,
    crossings: VecDeque<Noted>,
    readers: HashMap<Arc<str>, Arc<str>>,
    /// The parts that were opened.
    parts: Vec<Driven>,
}

/// What was found in it.
#[derive(Debug)]
enum Found {
    /// Is on the device still.
    Waiting(Box<Crossing>),
    Read(CrossingStatus),
}

impl Found {
    fn read(self) -> Option<CrossingStatus> {
        match self {
            Self::Waiting(crossing) => {
                #[cfg(test)]
                READS.set(READS.get() + 1);
                crossing.read()
            }
            Self::Read(status) => Some(status),
        }
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread has waited for a device.
    pub(crate) static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl Place {
    /// The part that it enters.
    fn entered(&self) -> Option<&Arc<Region>> {
        match self {
            Self::Scope(_, region) => region.as_ref(),
            Self::Arrival(region, _) => Some(region),
            Self::Departure(..) => None,
        }
    }
}

/// What a skip is to be blamed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// A gradient was too large for half precision once it was multiplied, or became so inside.
    Scale,
    /// The gradient of the loss was infinite or NaN before it reached half precision.
    Loss {
        /// Whether the model's output was finite.
        output_finite: bool,
    },
}

impl LiveScale {
    pub(crate) fn new(schedule: LossScale) -> Self {
        let live = Self {
            scale: AtomicU32::new(0),
            opened: AtomicU64::new(0),
            skips: AtomicU64::new(0),
            state: Mutex::new(State {
                schedule,
                parts: BTreeMap::new(),
                members: Vec::new(),
                iteration: Iteration::default(),
            }),
            crossings: Mutex::default(),
            noted: AtomicU64::new(0),
            ahead: Mutex::default(),
            readers: Mutex::default(),
        };
        live.set_schedule(schedule);
        live
    }

    /// The scale of the next scope.
    pub(crate) fn scale(&self) -> f32 {
        f32::from_bits(self.scale.load(Ordering::Acquire))
    }

    pub(crate) fn schedule(&self) -> LossScale {
        self.state().schedule
    }

    /// Goes on from this schedule, with a new iteration.
    pub(crate) fn set_schedule(&self, schedule: LossScale) {
        let mut state = self.state();
        state.iteration = Iteration::default();
        self.store(&mut state, schedule);
        drop(state);
        self.crossings().clear();
        self.go_ahead(None);
    }

    /// The scale as the device moves it, if it is ahead of this.
    pub(crate) fn ahead(&self) -> Option<Arc<Ahead>> {
        self.lock_ahead().clone().filter(|ahead| ahead.has_owner())
    }

    /// From now on scopes take the scale from the device, or no longer.
    pub(crate) fn go_ahead(&self, ahead: Option<Arc<Ahead>>) {
        *self.lock_ahead() = ahead;
    }

    fn lock_ahead(&self) -> MutexGuard<'_, Option<Arc<Ahead>>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state that a device goes on from; none where the host has to look at more than whether a step was skipped.
    pub(crate) fn on_device(&self) -> Option<ScaleState> {
        let state = self.state();
        let has_parts = !state.parts.is_empty();
        let state = state.schedule.on_device().filter(|_| !has_parts)?;
        Some(ScaleState {
            max_scale: state.max_scale.min(MAX_SCALE),
            ..state
        })
    }

    /// Takes out what the scopes have noted.
    pub(crate) fn take_noted(&self) -> VecDeque<Noted> {
        std::mem::take(&mut *self.crossings())
    }

    /// Puts back what was taken out.
    pub(crate) fn note_again(&self, noted: VecDeque<Noted>) {
        self.crossings().extend(noted);
    }

    /// Counts a scope, and gives it its number.
    pub(crate) fn open(&self) -> u64 {
        self.opened.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many scopes were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Counts a step that was skipped; how many there were so far.
    pub(crate) fn add_skip(&self) -> u64 {
        self.skips.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many steps were skipped so far, by all optimizers.
    pub(crate) fn skips(&self) -> u64 {
        self.skips.load(Ordering::Relaxed)
    }

    /// Adds an optimizer: an iteration ends when each of them has stepped.
    pub(crate) fn join(&self) -> Arc<()> {
        let member = Arc::new(());
        self.state().members.push(Arc::downgrade(&member));
        member
    }

    /// Takes what one optimizer's step has shown, none if it says nothing of the scale. Returns the scale before and after.
    ///
    /// An overflow lowers the scale at once, the first of an iteration alone. A clean iteration counts when all optimizers
    /// have stepped, or when one steps again: as one, with the measures of all their gradients.
    pub(crate) fn report(&self, member: &Arc<()>, seen: Option<Observation>) -> (f32, f32) {
        // Of another optimizer's steps, the device knows nothing.
        self.lock_ahead().take_if(|ahead| !ahead.is_of(member));
        let mut state = self.state();
        let before = state.schedule.scale();
        let id = Arc::as_ptr(member) as usize;
        if state.iteration.reported.contains(&id) {
            self.end_iteration(&mut state);
        }
        state.iteration.reported.push(id);
        if let Some(seen) = seen {
            self.take(&mut state, seen);
        }
        state.members.retain(|member| member.strong_count() > 0);
        let reported = &state.iteration.reported;
        let missing = |member: &Weak<()>| !reported.contains(&(member.as_ptr() as usize));
        if !state.members.iter().any(missing) {
            self.end_iteration(&mut state);
        }
        (before, state.schedule.scale())
    }

    fn take(&self, state: &mut State, seen: Observation) {
        match seen.outcome {
            StepOutcome::Skipped if !state.iteration.backed_off => {
                state.iteration.backed_off = true;
                if !back_off(state) {
                    let schedule = state.schedule.learn(seen);
                    self.store(state, schedule);
                }
            }
            StepOutcome::Stepped => {
                let iteration = &mut state.iteration;
                iteration.clean = true;
                iteration.measures = match (iteration.measures, seen.measures) {
                    (Some(sum), Some(measures)) => Some(sum.and(measures)),
                    (sum, measures) => sum.or(measures),
                };
            }
            _ => {}
        }
    }

    fn end_iteration(&self, state: &mut State) {
        let iteration = std::mem::take(&mut state.iteration);
        if iteration.clean && !iteration.backed_off {
            let schedule = state.schedule.learn(Observation {
                outcome: StepOutcome::Stepped,
                measures: iteration.measures,
            });
            self.store(state, schedule);
            for (name, part) in &mut state.parts {
                part.learn(name);
            }
        }
        state.parts.values_mut().for_each(Part::forget);
        self.forget_crossings();
    }

    /// Keeps the scale where a scope can use it.
    fn store(&self, state: &mut State, schedule: LossScale) {
        state.schedule = match schedule.scale() > MAX_SCALE {
            true => schedule
                .with_scale("loss_scale", MAX_SCALE.into())
                .unwrap_or(schedule),
            false => schedule,
        };
        let scale = state.schedule.scale().clamp(MIN_SCALE, MAX_SCALE);
        self.scale.store(scale.to_bits(), Ordering::Release);
    }

    /// Remembers a gradient on its way back.
    pub(crate) fn crossed(&self, place: Place, crossing: Crossing) {
        let mut crossings = self.crossings();
        if crossings.len() == MAX_CROSSINGS {
            crossings.pop_front();
        }
        crossings.push_back(Noted {
            number: self.noted.fetch_add(1, Ordering::Relaxed),
            place,
            found: Found::Waiting(Box::new(crossing)),
        });
    }

    /// Forgets the gradients of a backward pass whose step nobody takes.
    pub(crate) fn forget_crossings(&self) {
        self.crossings().clear();
    }

    /// Says what a skip is to be blamed on: the forward pass, or the first event in the order of the backward pass, or else the
    /// parts of the `overflows`, the parameters whose gradients overflow. Waits for the device.
    pub(crate) fn blame<'a>(&self, overflows: impl Iterator<Item = &'a str>) -> Blame {
        let crossings = std::mem::take(&mut *self.crossings());
        if crossings.is_empty() {
            // Another optimizer's skip has read them: both backward passes were over before it.
            if let Some(blame) = self.state().iteration.blame {
                return blame;
            }
        }
        let (blame, parts) = match first_event(crossings) {
            Some((blame, part)) => (blame, part.into_iter().collect()),
            None => (Blame::Scale, self.parts_of(overflows)),
        };
        let mut state = self.state();
        state.iteration.blame = Some(blame);
        state.iteration.parts = parts;
        blame
    }

    /// The parts in which these parameters were read; none if one was read elsewhere.
    fn parts_of<'a>(&self, mut parameters: impl Iterator<Item = &'a str>) -> Vec<Arc<str>> {
        let readers = (self.readers.lock()).unwrap_or_else(PoisonError::into_inner);
        let parts: Option<HashSet<_>> = match readers.is_empty() {
            true => None,
            false => parameters.try_fold(HashSet::new(), |mut parts, path| {
                parts.insert(readers.get(path)?.clone());
                Some(parts)
            }),
        };
        parts.into_iter().flatten().collect()
    }

    /// A parameter is read, in a part or in none.
    pub(crate) fn read_in(&self, part: Option<&Arc<Region>>, path: &Arc<str>) {
        let mut readers = (self.readers.lock()).unwrap_or_else(PoisonError::into_inner);
        match part {
            Some(region) => {
                readers.insert(path.clone(), region.part.clone());
            }
            // Shared by a part and what is around it.
            None if !readers.is_empty() => {
                readers.remove(path);
            }
            None => {}
        }
    }

    /// What a part multiplies gradients by now. A `dry` run leaves no trace.
    pub(crate) fn enter_part(&self, driven: &Driven, dry: bool) -> f32 {
        let parts = &mut self.state().parts;
        if dry {
            let known = parts.get(&driven.name).map(Part::factor);
            return known.unwrap_or_else(|| driven.first_factor());
        }
        let part = parts.entry(driven.name.clone());
        let part = part.or_insert_with(|| Part::new(driven));
        part.open(driven);
        part.factor()
    }

    /// The parts whose factors move, and what they multiply gradients by.
    pub(crate) fn parts(&self) -> BTreeMap<String, PartState> {
        let parts = &self.state().parts;
        let state = |(name, part): (&Arc<str>, &Part)| (name.to_string(), part.state());
        parts.iter().map(state).collect()
    }

    /// Goes on from the parts of a record, or from none.
    pub(crate) fn restore_parts(&self, parts: &BTreeMap<String, PartState>, with_settings: bool) {
        let part = |(name, state): (&String, &PartState)| {
            (name.as_str().into(), Part::stored(*state, with_settings))
        };
        self.state().parts = parts.iter().map(part).collect();
    }

    /// Starts all parts again.
    pub(crate) fn restart_parts(&self) {
        self.state().parts.values_mut().for_each(Part::restart);
    }

    /// Takes out what came to the parts that move by statistics and was not read, to be read with the gradients of a step.
    pub(crate) fn take_statistics(&self) -> (Vec<(u64, Place)>, Vec<Crossing>) {
        let taken = self.take_wanted().into_iter();
        let (mut places, mut crossings) = (Vec::new(), Vec::new());
        for Noted {
            number,
            place,
            found,
        } in taken
        {
            match found {
                Found::Waiting(crossing) => {
                    places.push((number, place));
                    crossings.push(*crossing);
                }
                found @ Found::Read(_) => self.crossings().push_back(Noted {
                    number,
                    place,
                    found,
                }),
            }
        }
        (places, crossings)
    }

    /// Puts back what was taken out, as it was read.
    pub(crate) fn put_back(
        &self,
        read: impl Iterator<Item = ((u64, Place), Option<CrossingStatus>)>,
    ) {
        self.crossings()
            .extend(read.filter_map(|((number, place), status)| {
                let found = Found::Read(status?);
                Some(Noted {
                    number,
                    place,
                    found,
                })
            }));
    }

    /// A scale of its own, in the same state, that no scope uses.
    pub(crate) fn apart(&self) -> Self {
        let state = self.state();
        let apart = Self::new(state.schedule);
        apart.state().parts = state.parts.clone();
        apart
    }

    /// Whether several optimizers move it.
    pub(crate) fn is_shared(&self) -> bool {
        let members = &self.state().members;
        members.iter().filter(|m| m.strong_count() > 0).count() > 1
    }

    /// Takes out what the scopes of an iteration have noted, for a step that is decided elsewhere.
    pub(crate) fn hand_over(&self) -> Passage {
        let readers = (self.readers.lock()).unwrap_or_else(PoisonError::into_inner);
        let parts = &mut self.state().parts;
        Passage {
            opened: self.opened(),
            crossings: std::mem::take(&mut *self.crossings()),
            readers: readers.clone(),
            parts: parts.values_mut().filter_map(Part::take_opened).collect(),
        }
    }

    /// Decides on what the scopes of another have noted.
    pub(crate) fn take_over(&self, passage: Passage) {
        self.opened.store(passage.opened, Ordering::Relaxed);
        self.crossings().extend(passage.crossings);
        *(self.readers.lock()).unwrap_or_else(PoisonError::into_inner) = passage.readers;
        for driven in passage.parts {
            self.enter_part(&driven, false);
        }
    }

    /// Uses the scale, and the factors of the parts, that another has reached.
    pub(crate) fn follow(&self, schedule: LossScale, parts: &BTreeMap<String, PartState>) {
        self.go_ahead(None);
        let mut state = self.state();
        self.store(&mut state, schedule);
        for (name, reached) in parts {
            let part = state.parts.entry(name.as_str().into());
            part.or_insert_with(|| Part::stored(*reached, true))
                .follow(*reached);
        }
    }

    /// Lets parts that move by statistics see what came to them, after a backward pass without overflow. Waits for the device if that was
    /// not read with the gradients.
    pub(crate) fn read_statistics(&self) {
        for Noted { place, found, .. } in self.take_wanted() {
            let (Some(region), Some(status)) = (place.entered(), found.read()) else {
                continue;
            };
            if let Some(part) = self.state().parts.get_mut(&region.part) {
                part.see(statistics(region, &status));
            }
        }
    }

    fn take_wanted(&self) -> VecDeque<Noted> {
        let state = self.state();
        if !state.parts.values().any(Part::wants_statistics) {
            return VecDeque::new();
        }
        let is_wanted = |noted: &Noted| {
            let region = noted.place.entered();
            let part = region.and_then(|region| state.parts.get(&region.part));
            part.is_some_and(Part::wants_statistics)
        };
        let mut crossings = self.crossings();
        let all = std::mem::take(&mut *crossings).into_iter();
        let (wanted, rest) = all.partition(is_wanted);
        *crossings = rest;
        wanted
    }

    /// Whether a gradient that is not zero has come to a scope on its way back. Waits for the device.
    pub(crate) fn has_gradients(&self) -> bool {
        let crossings = std::mem::take(&mut *self.crossings());
        let scopes = crossings
            .into_iter()
            .filter(|noted| matches!(noted.place, Place::Scope(..)));
        let mut statuses = scopes.filter_map(|noted| noted.found.read());
        statuses.any(|status| status.max_abs > 0.0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn crossings(&self) -> MutexGuard<'_, VecDeque<Noted>> {
        (self.crossings.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Backs off the parts that are to blame. Whether the scale that all share may stay: each of them had a lower factor to go to.
fn back_off(state: &mut State) -> bool {
    let blamed = std::mem::take(&mut state.iteration.parts);
    let mut all = !blamed.is_empty();
    for name in blamed {
        all &= match state.parts.get_mut(&name) {
            Some(part) => part.back_off(&name),
            None => false,
        };
    }
    all
}

/// What came to a part, as it was before the part multiplied it.
fn statistics(region: &Region, status: &CrossingStatus) -> Statistics {
    let factor = region.factor;
    Statistics {
        elements: status.elements,
        squares: (status.norm / factor).powi(2),
        max_abs: status.max_abs / factor,
        around: region.around,
    }
}

type Event = (Blame, Option<Arc<str>>);

/// The first event that explains an overflow, and the part in which it was; none if all that was measured was finite.
fn first_event(crossings: VecDeque<Noted>) -> Option<Event> {
    let mut crossings = Vec::from(crossings);
    crossings.sort_by_key(|noted| noted.number);
    let read = |noted: Noted| Some((noted.place, noted.found.read()?));
    let crossings: Vec<_> = crossings.into_iter().filter_map(read).collect();
    let scale = |region: Option<&Arc<Region>>| {
        let part = region.map(|region| region.part.clone());
        Some((Blame::Scale, part))
    };
    let loss = |output_finite| Some((Blame::Loss { output_finite }, None));
    // No scale is in a forward pass. An output that is infinite by design, a mask, has a finite gradient.
    let of_scope = |place: &Place| matches!(place, Place::Scope(..));
    if (crossings.iter())
        .any(|(place, status)| of_scope(place) && !status.output_finite && !status.gradient_finite)
    {
        return loss(false);
    }
    // A backward pass meets scopes from the last to the first: a later one is the begin of another pass.
    let (mut first, mut last) = (0, 0);
    for (place, status) in &crossings {
        match place {
            Place::Scope(scope, region) => {
                if *scope > last {
                    first = *scope;
                }
                last = *scope;
                if !status.gradient_finite && *scope == first {
                    return loss(true);
                }
                // What is not finite here has become so in a scope that was before.
                if !status.gradient_finite {
                    return scale(None);
                }
                if status.overflow {
                    return scale(region.as_ref());
                }
            }
            Place::Arrival(inside, outside) => {
                if !status.gradient_finite {
                    return scale(outside.as_ref());
                }
                if status.overflow {
                    return scale(Some(inside));
                }
            }
            Place::Departure(inside, outside) => {
                if !status.gradient_finite {
                    return scale(Some(inside));
                }
                if status.overflow {
                    return scale(outside.as_ref());
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::{Initializer, LinearConfig},
        optim::{GradientsParams, SgdConfig},
        tensor::{Device, Tensor},
    };

    use super::READS;
    use crate::{MixedPrecision, Rescale, ScaledOptimizer, gradient_pass, rescaled};

    #[test]
    fn statistics_of_parts_are_read_with_the_gradients() {
        let device = Device::flex().autodiff();
        let amp = MixedPrecision::f16();
        let linear = || {
            // With random weights a gradient may be so uneven that its part stays at 1.
            let weights = Initializer::Constant { value: 0.25 };
            let linear = LinearConfig::new(4, 4).with_initializer(weights);
            let linear = linear.init(&device);
            linear.apply_reparameterization(amp.clone())
        };
        let mut model = (linear(), linear());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        let part = |index: usize| Rescale::adaloss(format!("part {index}"));
        let before = gradient_pass::READS.get();
        for step in 1..4 {
            let output = amp.autocast(Tensor::<2>::ones([2, 4], &device), |x| {
                let hidden = rescaled(part(0), x, |x| model.0.forward(x));
                rescaled(part(1), hidden, |x| model.1.forward(x))
            });
            let loss = output.sum() * 1e-12;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(0.1, model, grads);
            assert_eq!(gradient_pass::READS.get() - before, step);
        }
        assert_eq!(READS.get(), 0);
        assert!(amp.parts().iter().all(|(_, factor)| *factor > 1.0));
    }
}

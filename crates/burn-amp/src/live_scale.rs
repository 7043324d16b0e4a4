//! The loss scale that all scopes of one `MixedPrecision` and its optimizers share, and what crossed its border.

use burn_amp_kernels::Crossing;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crate::loss_scale::{LossScale, Measures, Observation, StepOutcome};

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
    crossings: Mutex<VecDeque<(u64, Crossing)>>,
}

#[derive(Debug)]
struct State {
    schedule: LossScale,
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
                members: Vec::new(),
                iteration: Iteration::default(),
            }),
            crossings: Mutex::default(),
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
                let schedule = state.schedule.learn(seen);
                self.store(state, schedule);
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
        }
        self.crossings().clear();
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

    /// Remembers a gradient that has left scope number `scope` on its way back.
    pub(crate) fn crossed(&self, scope: u64, crossing: Crossing) {
        let mut crossings = self.crossings();
        if crossings.len() == MAX_CROSSINGS {
            crossings.pop_front();
        }
        crossings.push_back((scope, crossing));
    }

    /// Says what a skip is to be blamed on: the forward pass, or the first event in the order of the backward pass. Waits for
    /// the device.
    pub(crate) fn blame(&self) -> Blame {
        let crossings = std::mem::take(&mut *self.crossings());
        if crossings.is_empty() {
            // Another optimizer's skip has read them: both backward passes were over before it.
            return self.state().iteration.blame.unwrap_or(Blame::Scale);
        }
        let blame = first_event(crossings);
        self.state().iteration.blame = Some(blame);
        blame
    }

    /// Whether a gradient that is not zero has come to a scope on its way back. Waits for the device.
    pub(crate) fn has_gradients(&self) -> bool {
        let crossings = std::mem::take(&mut *self.crossings());
        let statuses = crossings.into_iter();
        let mut statuses = statuses.filter_map(|(_, crossing)| crossing.read());
        statuses.any(|status| status.max_abs > 0.0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn crossings(&self) -> MutexGuard<'_, VecDeque<(u64, Crossing)>> {
        (self.crossings.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

fn first_event(crossings: VecDeque<(u64, Crossing)>) -> Blame {
    let read = |(scope, crossing): (u64, Crossing)| Some((scope, crossing.read()?));
    let crossings: Vec<_> = crossings.into_iter().filter_map(read).collect();
    // No scale is in a forward pass. An output that is infinite by design, a mask, has a finite gradient.
    if (crossings.iter()).any(|(_, status)| !status.output_finite && !status.gradient_finite) {
        return Blame::Loss {
            output_finite: false,
        };
    }
    // A backward pass meets scopes from the last to the first: a later one is the begin of another pass.
    let (mut first, mut last) = (0, 0);
    for (scope, status) in crossings {
        if scope > last {
            first = scope;
        }
        last = scope;
        if !status.gradient_finite && scope == first {
            return Blame::Loss {
                output_finite: true,
            };
        }
        if !status.gradient_finite || status.overflow {
            return Blame::Scale;
        }
    }
    Blame::Scale
}

//! The loss scale that all scopes of one `MixedPrecision` and its optimizers share.

use burn_amp_kernels::ScaleState;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use crate::error::{AmpError, in_range};
use crate::scale::border_events::{BorderEvent, BorderEvents, next_number};
use crate::scale::loss_scale::{Evidence, GradScalerConfig, LossScale};
use crate::{
    lock::locked,
    scale::in_flight::InFlight,
    scale::members::{Iteration, Member, Members, Move},
    scale::regions::{Readers, SharedRegions},
    scale::untested::Untested,
};

/// Its inverse must be normal in f32, or gradients lose digits.
const MAX_SCALE: f32 = f32::from_bits(253 << 23); // 2^126
const MIN_SCALE: f32 = f32::from_bits(1 << 23); // 2^-126

/// One schedule for all scopes and optimizers of a `MixedPrecision`. Its rules are asked without a lock: they are code of a program, and a logger may
/// ask for the scale.
#[derive(Default)]
pub(crate) struct LiveScale {
    /// Of what scopes apply: its inverse must be normal.
    range: [f32; 2],
    /// How many scopes were opened.
    pub(super) opened: AtomicU64,
    /// How many steps were skipped, whatever for.
    skips: AtomicU64,
    pub(super) state: Mutex<State>,
    pub(super) regions: SharedRegions,
    /// On which threads gradients came to scopes, the last of them at the end.
    pub(super) threads: Mutex<Vec<ThreadId>>,
    /// Whether several threads did so in turn.
    pub(super) is_on_threads: AtomicBool,
    /// The gradients that came to the border since the last step.
    pub(crate) events: Arc<BorderEvents>,
    /// The steps of which the host does not know the outcome.
    pub(crate) in_flight: InFlight,
    /// When gradients were tested last, in the order of the events.
    tested: AtomicU64,
    /// Gradients that nobody has tested since.
    pub(super) untested: Untested,
    /// The parameter that was read last in a scope, if one is closed.
    pub(crate) last_read: Mutex<Option<Arc<str>>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    schedule: LossScale,
    /// How often the schedule has changed.
    changes: u64,
    pub(super) members: Members,
}

/// What the scopes of an iteration leave for a step that is decided elsewhere.
#[derive(Debug)]
pub(crate) struct ScopesLeft {
    opened: u64,
    is_on_threads: bool,
    events: VecDeque<BorderEvent>,
    readers: HashMap<Arc<str>, Readers>,
    /// The regions that were opened.
    regions: Vec<(String, Arc<LossScale>)>,
    last_read: Option<Arc<str>>,
}

impl LiveScale {
    /// Refuses settings of a scale that no scope could apply.
    pub(crate) fn check(config: &GradScalerConfig) -> Result<(), AmpError> {
        let (init, min) = (config.init_scale, config.min_scale.unwrap_or(0.0));
        if !config.enabled {
            return Ok(());
        }
        let inside = init >= f64::from(MIN_SCALE);
        in_range("init_scale", init, inside, "at least 2^-126 in `autocast`")?;
        let inside = min <= f64::from(MAX_SCALE);
        in_range("min_scale", min, inside, "at most 2^126 in `autocast`")
    }

    /// That of a `MixedPrecision`, which scopes apply.
    pub(crate) fn new(schedule: LossScale) -> Self {
        Self::with(schedule, [MIN_SCALE, MAX_SCALE])
    }

    /// That of a scaler that scales losses itself, by any number.
    pub(crate) fn of_scaler(schedule: LossScale) -> Self {
        Self::with(schedule, [0.0, f32::MAX])
    }

    fn with(schedule: LossScale, range: [f32; 2]) -> Self {
        let live = Self {
            range,
            ..Self::default()
        };
        live.set_schedule(schedule);
        live
    }

    pub(super) fn is_of_scopes(&self) -> bool {
        self.range == [MIN_SCALE, MAX_SCALE]
    }

    /// A scale of its own, in the same state, that no scope uses.
    pub(crate) fn detached(&self) -> Self {
        let detached = Self::with(self.schedule(), self.range);
        let regions = self.regions.lock().clone();
        *detached.regions.lock() = regions;
        detached
    }

    /// The scale of the next scope.
    pub(crate) fn scale(&self) -> f32 {
        let [min, max] = self.range;
        locked(&self.state).schedule.scale().clamp(min, max)
    }

    pub(crate) fn schedule(&self) -> LossScale {
        locked(&self.state).schedule.clone()
    }

    /// Whether the scale multiplies nothing; see [`LossScale::is_idle`].
    pub(crate) fn is_idle(&self) -> bool {
        locked(&self.state).schedule.is_idle()
    }

    /// The settings of the schedule.
    pub fn config(&self) -> GradScalerConfig {
        *locked(&self.state).schedule.config()
    }

    /// Goes on from this schedule, with a new iteration. Gradients that were not tested yet are still explained.
    pub(crate) fn set_schedule(&self, schedule: LossScale) {
        self.put(schedule, None);
        locked(&self.state).members.iteration = Iteration::default();
    }

    /// Ends an iteration after which the program has set the scale: the regions alone move by what it has shown, if it has shown something.
    pub(crate) fn end_regions(&self, seen: Option<Evidence>) {
        let iteration = std::mem::take(&mut locked(&self.state).members.iteration);
        // Another optimizer's overflow has lowered them already.
        if seen == Some(Evidence::Overflow) && iteration.seen != seen {
            self.regions.back_off(&iteration.regions);
        }
        if seen.is_some() {
            let finite = seen.filter(|seen| *seen != Evidence::Overflow);
            self.regions.end_iteration(finite);
        }
    }

    /// Changes the schedule, and returns the scale before and after: `change` is called again if another thread has changed it meanwhile.
    pub(crate) fn change<E>(
        &self,
        change: impl Fn(LossScale) -> Result<LossScale, E>,
    ) -> Result<[f32; 2], E> {
        loop {
            let (schedule, changes) = {
                let state = locked(&self.state);
                (state.schedule.clone(), state.changes)
            };
            let before = schedule.scale();
            let next = change(schedule)?;
            if let Some(after) = self.put(next, Some(changes)) {
                return Ok([before, after]);
            }
        }
    }

    /// Puts a schedule in the place of the one that has changed so often, or of any. Its scale, if it did.
    fn put(&self, schedule: LossScale, changes: Option<u64>) -> Option<f32> {
        let schedule = self.in_range(schedule);
        let after = schedule.scale();
        let mut state = locked(&self.state);
        if changes.is_some_and(|changes| changes != state.changes) {
            return None;
        }
        state.changes += 1;
        let before = std::mem::replace(&mut state.schedule, schedule);
        drop(state);
        // Its rule may be dropped with it.
        drop(before);
        self.in_flight.set_device_step(None);
        Some(after)
    }

    /// As [`set_schedule`](Self::set_schedule), of another run: what came to the border before is forgotten.
    pub(crate) fn restart_at(&self, schedule: LossScale) {
        self.set_schedule(schedule);
        self.events.forget();
    }

    /// Gradients were tested: what came to the border before is explained, or explains nothing.
    pub(crate) fn note_test(&self) -> u64 {
        self.untested.end();
        self.tested.store(next_number(), Ordering::Relaxed);
        self.tested()
    }

    /// When gradients were tested last, in the order of the events.
    pub(crate) fn tested(&self) -> u64 {
        self.tested.load(Ordering::Relaxed)
    }

    /// Resolves steps in flight, in their order: all of them if it `waits`.
    pub(crate) fn resolve(&self, waits: bool) {
        self.in_flight.resolve(waits);
    }

    /// The state that a device goes on from; none where the host has to look at more than whether a step was skipped, or where optimizers that
    /// are gone have left an iteration that is to be ended.
    pub(crate) fn on_device(&self) -> Option<ScaleState> {
        let has_regions = self.regions.lock().were_opened();
        let is_open = self.is_in_iteration();
        let state = self.schedule().on_device();
        let state = state.filter(|_| !has_regions && !is_open)?;
        Some(ScaleState {
            max_scale: state.max_scale.min(MAX_SCALE),
            ..state
        })
    }

    /// Counts a step that was skipped; how many there were so far.
    pub(crate) fn add_skip(&self) -> u64 {
        self.skips.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many steps were skipped so far, by all optimizers.
    pub(crate) fn skips(&self) -> u64 {
        self.skips.load(Ordering::Relaxed)
    }

    /// Adds an optimizer. An iteration ends when each of those has stepped that are [expected](Self::expect).
    pub(crate) fn join(&self) -> Arc<()> {
        self.untested.expect_test();
        locked(&self.state).members.join()
    }

    /// From now on an iteration waits for the step of this optimizer. It is counted with those of before if it `begins` after them.
    pub(crate) fn expect(&self, member: &Arc<()>, begins: bool) {
        locked(&self.state).members.expect(member, begins);
    }

    /// Whether several optimizers move it.
    pub(crate) fn is_shared(&self) -> bool {
        locked(&self.state).members.are_several()
    }

    /// Whether other optimizers than this one move it.
    pub(crate) fn is_moved_by_others(&self, member: &Arc<()>) -> bool {
        let members = &locked(&self.state).members;
        members.others(member).any(Member::is_waited_for)
    }

    /// Whether some of its optimizers have stepped in an iteration that the others have not ended.
    pub(crate) fn is_in_iteration(&self) -> bool {
        locked(&self.state).members.iteration.is_open()
    }

    /// Whether there are other optimizers than this one.
    pub(crate) fn has_others(&self, member: &Arc<()>) -> bool {
        let members = &locked(&self.state).members;
        members.others(member).any(Member::is_there)
    }

    /// Takes what one optimizer's step has shown, none if it says nothing of the scale. Returns the scale before and after.
    ///
    /// An overflow lowers the scale at once, the first of an iteration alone. A finite iteration counts when all optimizers
    /// have stepped, or when one steps again: as one, with the measures of all their gradients.
    pub(crate) fn report(&self, member: &Arc<()>, seen: Option<Evidence>) -> [f32; 2] {
        // Of a step that the host has decided, the device knows nothing.
        self.in_flight.set_device_step(None);
        let (before, moves) = {
            let mut state = locked(&self.state);
            let moves = state.members.report(member, seen);
            (state.schedule.scale(), moves)
        };
        for step in moves {
            match step {
                Move::BackOff(regions) if self.regions.back_off(&regions) => {}
                Move::BackOff(_) => self.advance(Evidence::Overflow),
                Move::End(seen) => {
                    let finite = seen.filter(|seen| *seen != Evidence::Overflow);
                    finite.into_iter().for_each(|seen| self.advance(seen));
                    self.regions.end_iteration(finite);
                    self.events.end_iteration(self.tested());
                }
            }
        }
        [before, locked(&self.state).schedule.scale()]
    }

    /// Whether an overflow finds nothing to lower: neither the scale nor the factors of the regions that are its cause.
    pub(crate) fn is_at_floor(&self) -> bool {
        let (seen, regions, schedule) = {
            let state = locked(&self.state);
            let Iteration { seen, regions, .. } = &state.members.iteration;
            (*seen, regions.clone(), state.schedule.clone())
        };
        // Where another optimizer's overflow was met, something was lowered in this iteration.
        let was_lowered = seen == Some(Evidence::Overflow);
        !was_lowered && !self.regions.can_back_off(&regions) && schedule.is_at_floor()
    }

    fn advance(&self, seen: Evidence) {
        let advanced = |schedule: LossScale| Ok::<_, Infallible>(schedule.advance(seen));
        let Ok(_) = self.change(advanced);
    }

    /// A schedule whose scale is no higher than a scope can use.
    fn in_range(&self, schedule: LossScale) -> LossScale {
        let [_, max] = self.range;
        match schedule.scale() > max {
            true => (schedule.clone())
                .with_scale("loss_scale", max.into())
                .unwrap_or(schedule),
            false => schedule,
        }
    }

    /// The regions whose factors move.
    pub(crate) fn regions(&self) -> &SharedRegions {
        &self.regions
    }

    /// Takes out what the scopes of an iteration have left, for a step that is decided elsewhere.
    pub(crate) fn hand_over(&self) -> ScopesLeft {
        let mut regions = self.regions.lock();
        self.untested.end();
        ScopesLeft {
            opened: self.opened(),
            is_on_threads: self.is_on_threads.load(Ordering::Relaxed),
            events: measured_elsewhere(self.events.take()),
            readers: regions.readers_now(),
            regions: regions.take_opened(),
            last_read: self.last_read(),
        }
    }

    /// Decides on what the scopes of another have left.
    pub(crate) fn take_over(&self, left: ScopesLeft) {
        self.opened.store(left.opened, Ordering::Relaxed);
        (self.is_on_threads).store(left.is_on_threads, Ordering::Relaxed);
        // The last test here may have been made while these came: they are of the next one all the same.
        if let Some(first) = left.events.front() {
            self.tested.store(first.number - 1, Ordering::Relaxed);
        }
        self.events.restore(left.events);
        if left.last_read.is_some() {
            *locked(&self.last_read) = left.last_read;
        }
        self.regions.lock().join_readers(left.readers);
        for (name, wanted) in left.regions {
            self.regions.enter(&name, &wanted, false);
        }
    }

    /// Uses the scale, and the factors of the regions, that another has reached.
    pub(crate) fn follow(&self, other: &Self) {
        self.put(other.schedule(), None);
        let regions = other.regions.lock().clone();
        self.regions.lock().follow(&regions);
    }
}

impl std::fmt::Debug for LiveScale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let schedule = self.schedule();
        f.debug_struct("LiveScale")
            .field("schedule", &schedule)
            .finish_non_exhaustive()
    }
}

/// What another thread is to look at, which does not launch what this one has queued.
fn measured_elsewhere(events: VecDeque<BorderEvent>) -> VecDeque<BorderEvent> {
    events
        .into_iter()
        .filter_map(BorderEvent::measured_unless_here)
        .collect()
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::{Initializer, LinearConfig},
        optim::{GradientsParams, SgdConfig},
        tensor::{Device, Tensor},
    };

    use crate::scale::border_events::READS;
    use crate::{
        GradScalerConfig, MixedPrecision, Rescale, ScaledOptimizer, Schedule, gradients::pass,
        rescaled,
    };

    #[test]
    fn measures_of_regions_are_read_with_the_gradients() {
        let device = Device::flex().autodiff();
        let amp = MixedPrecision::f16();
        let linear = || {
            let weights = Initializer::Constant { value: 0.25 };
            let linear = LinearConfig::new(4, 4).with_initializer(weights);
            let linear = linear.init(&device);
            linear.apply_reparameterization(amp.clone())
        };
        let mut model = (linear(), linear());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        let config = GradScalerConfig::new().with_init_scale(1.0);
        let config = config.with_schedule(Schedule::log_max());
        let region = |index: usize| {
            let region = Rescale::dynamic(format!("region {index}"));
            region.with_scaler(config).unwrap()
        };
        let before = pass::READS.get();
        for step in 1..4 {
            let output = amp.autocast(Tensor::<2>::ones([2, 4], &device), |x| {
                let hidden = rescaled(region(0), x, |x| model.0.forward(x));
                rescaled(region(1), hidden, |x| model.1.forward(x))
            });
            let loss = output.sum() * 1e-12;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(0.1, model, grads);
            assert_eq!(pass::READS.get() - before, step);
        }
        assert_eq!(READS.get(), 0);
        assert!(amp.regions().iter().all(|(_, factor)| *factor > 1.0));
    }
}

//! The loss scale that all scopes of one `MixedPrecision` and its optimizers share: its owner, and where every step ends.

use burn::module::ParamId;
use burn_amp_kernels::ScaleState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{collections::VecDeque, convert::Infallible};

use crate::error::{AmpError, in_range};
use crate::scale::account::{Account, Call, Floor, Purpose, log_scale};
use crate::scale::border_events::BorderEvents;
use crate::scale::loss_scale::{Evidence, GradScalerConfig, LossScale, StepOutcome};
use crate::scale::members::{Ended, Members, OptimizerId, Seat};
use crate::{
    lock::locked,
    scale::device_step::DeviceStep,
    scale::finding::{Effect, Finding, Shown, Tested},
    scale::in_flight::{MAX_IN_FLIGHT, Pending},
    scale::journal::{Caller, Journal},
    scale::regions::SharedRegions,
    scale::status::GradientStatus,
    scale::untested::Untested,
};

/// Its inverse must be normal in f32, or gradients lose digits.
const MAX_SCALE: f32 = f32::from_bits(253 << 23); // 2^126
const MIN_SCALE: f32 = f32::from_bits(1 << 23); // 2^-126

/// One schedule for all scopes and optimizers of a `MixedPrecision`. Its rules are asked without a lock: they are code of a program.
#[derive(Default)]
pub(crate) struct LiveScale {
    /// The range of what scopes apply: its inverse must be normal.
    pub(super) range: [f32; 2],
    /// The number of scopes that were opened.
    pub(super) opened: AtomicU64,
    pub(super) state: Mutex<State>,
    /// The regions whose factors move.
    pub(crate) regions: SharedRegions,
    /// The gradients that came to the border since the last step.
    pub(crate) events: Arc<BorderEvents>,
    /// The steps of which the host does not know the outcome, in their order. They belong to the scale, so that no optimizer that is dropped or
    /// cloned takes them along. Locked before all else.
    queue: Mutex<VecDeque<Box<dyn Pending>>>,
    /// The number of tests so far.
    pub(super) tests: AtomicU64,
    /// Held by the worker who explains a skip: the others take what it has found.
    pub(super) explaining: Mutex<()>,
    /// Gradients that nobody has tested since.
    pub(super) untested: Untested,
    /// Set while an observer follows the steps: a training without one takes no lock for it.
    pub(crate) is_observed: AtomicBool,
    /// The parameter that was read last in a scope, if one is closed.
    pub(crate) last_read: Mutex<Option<Arc<str>>>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) schedule: LossScale,
    /// The number of changes of the schedule.
    changes: u64,
    /// The scale as the device moves it, ahead by the steps in flight; none where the host does.
    pub(super) device_step: Option<Arc<DeviceStep>>,
    pub(super) members: Members,
    journal: Journal,
    /// The number of steps that were skipped, whatever for.
    overflows: u64,
}

/// The scale, and who has it.
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

    /// The scale of a `MixedPrecision`, which scopes apply.
    pub(crate) fn new(schedule: LossScale) -> Self {
        Self::with(schedule, [MIN_SCALE, MAX_SCALE])
    }

    /// The scale of a scaler that scales losses itself, by any number.
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
        if self.has_regions() {
            let regions = self.regions.lock().clone();
            detached.regions.replace(|own| *own = regions);
        }
        detached
    }

    /// The scale of the next scope.
    pub(crate) fn scale(&self) -> f32 {
        let [min, max] = self.range;
        locked(&self.state).schedule.scale().clamp(min, max)
    }

    /// The scale as a program is shown it: 1 where it is disabled.
    pub(crate) fn loss_scale(&self) -> f32 {
        locked(&self.state).schedule.scale()
    }

    pub(crate) fn schedule(&self) -> LossScale {
        locked(&self.state).schedule.clone()
    }

    /// Says whether the scale multiplies nothing; see [`LossScale::is_idle`]. A scope asks it for each parameter, and copies no schedule for that.
    pub(crate) fn is_idle(&self) -> bool {
        locked(&self.state).schedule.is_idle()
    }

    /// The settings of the schedule.
    pub(crate) fn config(&self) -> GradScalerConfig {
        locked(&self.state).schedule.config
    }

    /// Goes on from this schedule, with a new iteration. Gradients that were not tested yet are still explained.
    pub(crate) fn set_schedule(&self, schedule: LossScale) {
        let Ok(_) = self.change(|_| Ok::<_, Infallible>(schedule.clone()));
        locked(&self.state).members.iteration = Default::default();
    }

    /// Goes on from the schedule of another run: what came to the border before is forgotten.
    pub(crate) fn restart_at(&self, schedule: LossScale) {
        self.set_schedule(schedule);
        drop(self.events.take());
    }

    /// Changes the schedule, and returns the scale before and after, which is no higher than a scope can use. `change` is called again if another
    /// thread has changed it meanwhile.
    pub(crate) fn change<E>(
        &self,
        change: impl Fn(LossScale) -> Result<LossScale, E>,
    ) -> Result<[f32; 2], E> {
        let [_, max] = self.range;
        loop {
            let state = locked(&self.state);
            let (schedule, changes) = (state.schedule.clone(), state.changes);
            drop(state);
            let before = schedule.scale();
            let mut next = change(schedule)?;
            if next.scale() > max {
                let lowered = next.clone().with_scale("loss_scale", max.into());
                next = lowered.unwrap_or(next);
            }
            let after = next.scale();
            let mut state = locked(&self.state);
            if state.changes == changes {
                state.changes += 1;
                let replaced = std::mem::replace(&mut state.schedule, next);
                let device_step = state.device_step.take();
                drop(state);
                // Its rule may be dropped with it.
                drop((replaced, device_step));
                return Ok([before, after]);
            }
        }
    }

    /// Says whether there is a region whose factor moves.
    pub(crate) fn has_regions(&self) -> bool {
        self.regions.are_there.load(Ordering::Relaxed)
    }

    /// Returns the number of scopes that were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// An optimizer has tested gradients of these parameters: what came to the border before is explained, or explains nothing.
    pub(crate) fn note_test(&self, id: OptimizerId, ids: impl FnOnce() -> Vec<ParamId>) {
        self.tests.fetch_add(1, Ordering::Relaxed);
        // Held: another worker adds gradients of the next step once it has ended this one.
        let state = locked(&self.state);
        (self.events).note_test(ids, state.members.ended_by_others(id).is_some());
    }

    /// The number of times that gradients of any optimizer have overflowed so far, those included that were thrown away.
    pub(crate) fn overflows(&self) -> u64 {
        locked(&self.state).overflows
    }

    /// Adds an optimizer. An iteration ends when each of those has stepped that are [expected](Self::expect).
    pub(super) fn join(&self, id: OptimizerId) -> Seat {
        self.untested.expect_test();
        locked(&self.state).members.join(id)
    }

    /// Has an iteration wait for the step of this optimizer from now on. It is counted with those of before if it `begins` after them.
    pub(crate) fn expect(&self, id: OptimizerId, begins: bool) {
        locked(&self.state).members.expect(id, begins);
    }

    /// Says whether several optimizers move it; others than one, if that is given.
    pub(crate) fn is_shared(&self, beside: Option<OptimizerId>) -> bool {
        locked(&self.state).members.has_expected_beside(beside)
    }

    /// Says whether some of its optimizers have stepped in an iteration that the others have not ended.
    pub(crate) fn is_in_iteration(&self) -> bool {
        !locked(&self.state).members.iteration.reported.is_empty()
    }
}

/// The ends of steps, and what is known of them.
impl LiveScale {
    /// Looks at the journal.
    pub(crate) fn journal<T>(&self, look: impl FnOnce(&Journal) -> T) -> T {
        look(&locked(&self.state).journal)
    }

    /// Looks at the account of an optimizer, or changes it.
    pub(crate) fn account<T>(&self, id: OptimizerId, look: impl FnOnce(&mut Account) -> T) -> T {
        look(locked(&self.state).journal.account(id))
    }

    /// The account is that of an optimizer from now on; none if the optimizer is gone.
    pub(super) fn set_account(&self, id: OptimizerId, account: Option<Account>) {
        locked(&self.state).journal.put(id, account);
    }

    /// Ends a step, whoever has decided it: counts it, moves the scale by what its gradients have shown, and enters it in the journal.
    ///
    /// # Errors
    ///
    /// If it is an overflow, or a rejection, too many: the scale stays then.
    pub(crate) fn end(
        &self,
        id: OptimizerId,
        found: &Finding,
        status: Option<Arc<GradientStatus>>,
        caller: Caller,
    ) -> Result<StepOutcome, AmpError> {
        let counted = self.count_alone(id, Purpose::Step, found);
        let outcome = found.outcome();
        let call = Call {
            outcome: Some(outcome),
            status,
            is_step: true,
        };
        self.enter(id, call, Some(caller));
        counted.map(|()| outcome)
    }

    /// Enters a call of an optimizer in the journal. `caller` was to step, with the learning rate of a scheduler.
    pub(crate) fn enter(&self, id: OptimizerId, call: Call, caller: Option<Caller>) {
        let state = &mut *locked(&self.state);
        let scale = state.schedule.scale();
        state.journal.enter(id, call, scale, caller);
    }

    /// Corrects the scale after the last steps of an optimizer, so many: their iteration has ended since.
    pub(crate) fn enter_end(&self, id: OptimizerId, steps: usize) {
        let state = &mut *locked(&self.state);
        let scale = state.schedule.scale();
        state.journal.end_iteration(id.optimizer, steps, scale);
    }

    /// Shows what an optimizer counts, which has changed between two calls. If it `restarts`, those that are gone count no longer, if no other is
    /// there.
    pub(crate) fn show(&self, id: OptimizerId, restarts: bool) {
        let state = &mut *locked(&self.state);
        if restarts && !state.members.has_others(id) {
            state.journal.forget();
        }
        state.journal.show(id, restarts);
    }

    /// Counts gradients. What they show is added to what their iteration has `shown`, by which the scale [moves](Self::advance) later; but not if another
    /// worker has ended their step. Those that spare the scale are reported at once.
    ///
    /// # Errors
    ///
    /// If they are an overflow, or a rejection, too many: nothing is added.
    pub(crate) fn count(
        &self,
        id: OptimizerId,
        purpose: Purpose,
        found: &Finding,
        shown: &mut Shown,
    ) -> Result<(), AmpError> {
        let (effect, overflow) = (found.effect(), found.overflow());
        let is_first = shown.evidence != Some(Evidence::Overflow);
        // Its rule is asked without a lock.
        let floor = overflow.map(|_| self.floor()).unwrap_or_default();
        let (mut counted, leads) = {
            let state = &mut *locked(&self.state);
            state.overflows += u64::from(overflow.is_some());
            let end = || Ended {
                tested: found.tested.clone(),
                schedule: state.schedule.clone(),
                floor,
            };
            let known = match purpose {
                Purpose::Step => state.members.end(id, &found.tested, end),
                _ => None,
            };
            let by = known.as_ref().map(|known| (&known.schedule, known.floor));
            let (schedule, floor) = by.unwrap_or((&state.schedule, floor));
            let account = state.journal.account(id);
            let counted = account.record(purpose, found, schedule, floor, is_first);
            if known.is_some() && matches!(effect, Effect::Moves(Evidence::Finite(_))) {
                account.end_row();
            }
            (counted, known.is_none())
        };
        match effect {
            Effect::Moves(seen) if leads && counted.is_ok() => {
                shown.evidence = Some(seen.after(shown.evidence));
                shown.overflows.extend(overflow.cloned());
            }
            // The others that share the scale are not kept waiting.
            Effect::Spares if leads => self.advance(id, purpose, &Shown::default()),
            _ => {}
        }
        // A step without gradients says nothing of the scale, but what came before it explains nothing that comes.
        if found.tested == Tested::Nothing && purpose == Purpose::Step && leads {
            self.events.end_iteration();
        }
        if let Err(AmpError::LossNotFinite { last_read, .. }) = &mut counted {
            *last_read = self.last_read().map(|path| path.to_string());
        }
        counted
    }

    /// Counts gradients that are an iteration by themselves, and moves the scale by them.
    ///
    /// # Errors
    ///
    /// As [`count`](Self::count): the scale stays then.
    pub(crate) fn count_alone(
        &self,
        id: OptimizerId,
        purpose: Purpose,
        found: &Finding,
    ) -> Result<(), AmpError> {
        let mut shown = Shown::default();
        let counted = self.count(id, purpose, found, &mut shown);
        if shown.evidence.is_some() {
            self.advance(id, purpose, &shown);
        }
        counted
    }

    /// Moves the scale, or the factors of regions, by what the gradients of a step have `shown`. Where that is nothing, the others that share the scale
    /// are not kept waiting.
    pub(crate) fn advance(&self, id: OptimizerId, purpose: Purpose, shown: &Shown) {
        let seen = shown.evidence;
        let (before, moves) = {
            let state = &mut *locked(&self.state);
            if let Some(Evidence::Finite(_)) = seen {
                state.journal.account(id).end_row();
            }
            if !state.schedule.config.enabled {
                return;
            }
            if seen.is_some() {
                // Of a step that the host has decided, the device knows nothing.
                state.device_step = None;
            }
            (state.schedule.scale(), state.members.report(id, seen))
        };
        let adjust = |seen| {
            let Ok(_) = self.change(|schedule| Ok::<_, Infallible>(schedule.adjust(seen)));
        };
        // An overflow has moved the scale already.
        let end = |seen: Option<Evidence>| {
            let finite = seen.filter(|seen| *seen != Evidence::Overflow);
            finite.into_iter().for_each(adjust);
            if self.has_regions() {
                self.regions.end_iteration(finite);
            }
            self.events.end_iteration();
        };
        moves.before.into_iter().for_each(end);
        if let Some(regions) = moves.back_off
            && !self.regions.back_off(&regions)
        {
            adjust(Evidence::Overflow);
        }
        moves.ended.into_iter().for_each(end);
        let Some(seen) = seen else {
            return;
        };
        let state = &mut *locked(&self.state);
        let after = state.schedule.scale();
        if seen == Evidence::Overflow || before != after {
            let skips = state.journal.account(id).counters.consecutive_skips();
            let often = state.schedule.needs_measures();
            let overflows = &shown.overflows;
            log_scale([before, after], seen, purpose, overflows, skips, often);
        }
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
        self.events.end_iteration();
    }

    /// Finds out what an overflow can lower: the scale, or the factors of the regions that are its cause. If nothing, it may end the run.
    fn floor(&self) -> Floor {
        let state = locked(&self.state);
        let (iteration, schedule) = (&state.members.iteration, state.schedule.clone());
        let (seen, regions) = (iteration.seen, iteration.regions.clone());
        drop(state);
        // Where another optimizer's overflow was met, something was lowered in this iteration.
        let was_lowered = seen == Some(Evidence::Overflow);
        let is_reached = schedule.is_at_floor();
        let ends = schedule.config.raise_error_at_min_scale
            && is_reached
            && !was_lowered
            && !self.regions.can_back_off(&regions);
        Floor { is_reached, ends }
    }
}

/// Steps in flight, which a device decides.
impl LiveScale {
    /// Adds a step in flight.
    pub(crate) fn push(&self, step: Box<dyn Pending>) {
        locked(&self.queue).push_back(step);
    }

    /// Resolves steps in flight in their order: all of them if it `waits`, else those whose outcome is there, and those that are more than
    /// [`MAX_IN_FLIGHT`].
    pub(crate) fn resolve(&self, waits: bool) {
        // Held meanwhile, so that they are in their order whoever asks.
        let mut steps = locked(&self.queue);
        if steps.is_empty() {
            return;
        }
        // The device is ahead of what ends here.
        let device_step = self.device_step();
        loop {
            let waits = waits || steps.len() > MAX_IN_FLIGHT;
            match steps.pop_front_if(|step| waits || step.is_known()) {
                Some(step) => step.resolve(),
                None => break,
            }
        }
        self.set_device_step(device_step);
    }

    /// The scale as the device moves it; none where the host does, or its optimizer is gone.
    pub(crate) fn device_step(&self) -> Option<Arc<DeviceStep>> {
        let device_step = locked(&self.state).device_step.clone();
        device_step.filter(|device_step| device_step.has_owner())
    }

    /// Has scopes take the scale from the device from now on, or no longer.
    pub(crate) fn set_device_step(&self, device_step: Option<Arc<DeviceStep>>) {
        let before = std::mem::replace(&mut locked(&self.state).device_step, device_step);
        drop(before);
    }

    /// The state that a device goes on from; none where the host has to look at more than whether a step was skipped, or where optimizers that
    /// are gone have left an iteration that is to be ended.
    pub(crate) fn on_device(&self) -> Option<ScaleState> {
        let has_regions = self.has_regions() && self.regions.lock().were_opened();
        let state = self.schedule().on_device();
        let state = state.filter(|_| !has_regions && !self.is_in_iteration())?;
        Some(ScaleState {
            max_scale: state.max_scale.min(MAX_SCALE),
            ..state
        })
    }
}

impl std::fmt::Debug for LiveScale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveScale")
            .field("schedule", &self.schedule())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::LinearConfig,
        optim::{GradientsParams, SgdConfig},
        tensor::{Device, Tensor},
    };

    use crate::{MixedPrecision, lock};

    /// The queue of steps in flight, the state of the scale, and the border events.
    #[test]
    fn a_plain_step_takes_three_locks() {
        let device = Device::flex().autodiff();
        let amp = MixedPrecision::f16();
        let model = LinearConfig::new(4, 2).init(&device);
        let (mut model, mut optim) = amp.prepare(model, SgdConfig::new().init());
        for _ in 0..3 {
            let input = Tensor::<2>::full([2, 4], 0.01, &device);
            let loss = amp.autocast(input, |x| model.forward(x)).square().mean();
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            lock::TAKEN.take();
            model = optim.step(0.1, model, grads);
            assert_eq!(lock::TAKEN.take().len(), 3);
        }
        assert_eq!((amp.counters().steps(), amp.counters().skipped()), (3, 0));
    }
}

//! [`Scaler`]: an optimizer's side of the loss scale.

use burn::{module::Module, optim::GradientsParams};
use burn_amp_kernels::DeviceScale;
use std::collections::VecDeque;
use std::sync::{Arc, atomic::Ordering};

mod accumulate;
pub(crate) mod accumulation;
mod joint;
mod losses;
mod ranks;
mod record;
mod settings;
mod step;

pub use joint::Joint;
pub(crate) use record::ScalerState;
pub(crate) use step::Failed;
pub use step::{keep_statistics, repair_statistics};

use crate::border::SCALES_GRADIENTS;
use crate::gradients::entries::{Entries, LOW_RANK, ids_of};
use crate::gradients::running_statistics::Buffers;
use crate::gradients::{ScaledGradients, StepGradients, UnscaledGradients, handles};
use crate::peers::Ranks;
use crate::scale::finding::{Dropped, Finding};
use crate::scale::loss_scale::{GradScalerConfig, LossScale, StepOutcome};
use crate::scale::{account::Account, place::Place};
use crate::scaler::accumulation::AccumulationWindow;
use crate::{
    border::mixed_precision::MixedPrecision,
    border::observer::{Observer, Stepped},
    error::AmpError,
    gradients::unscale::unscale,
    scale::account::Call,
    scale::border_events::BorderEvent,
    scale::device_step::DeviceStep,
    scale::journal::Caller,
    scale::live_scale::LiveScale,
    scale::status::GradientStatus,
    scale::step_counters::StepCounters,
    scaler::losses::{LossWatch, SCALES_LOSSES, warn_of_two_scales},
    values::is_half,
};

/// The result of a test of gradients that were to be stepped with.
pub(crate) enum Inspected {
    /// They were tested: these, or those of a window that is full, with the measures of the micro-batch that has filled it.
    Tested(Box<UnscaledGradients>, Option<Arc<GradientStatus>>),
    /// They are in a window that is not full, or were left out of it.
    Waits(StepOutcome),
}

/// An optimizer's side of a loss scale: its settings, its state, and the counters of the optimizer's steps.
///
/// What [`ScaledOptimizer::scaler`](crate::ScaledOptimizer::scaler) returns, and what a `GradScaler` is built on. Made from a
/// `&MixedPrecision`, whose loss scale it moves, from a [`LossScale`], by which it multiplies losses itself, or from a `GradScaler`.
///
/// A value: a clone is independent, with two exceptions. Clones of the scaler of a [`MixedPrecision`] share its loss scale. And a
/// loss that a clone has scaled since the last step counts as scaled for the original too, so that workers may
/// scale with clones. A [`ScaledLrScheduler`](crate::ScaledLrScheduler) does not follow a clone of one with a scale of its own.
#[derive(Debug)]
pub struct Scaler {
    /// The scale, whoever applies it.
    pub(crate) live: Arc<LiveScale>,
    pub(crate) amp: Option<MixedPrecision>,
    /// The optimizer's place among those that share the scale.
    pub(crate) place: Arc<Place>,
    pub(crate) watch: LossWatch,
    /// The findings of gradients that were unscaled, and then dropped.
    pub(crate) dropped: Dropped,
    /// The scopes that were open at the last step.
    opened: u64,
    warned_of_no_scope: bool,
    pub(crate) buffers: Buffers,
    /// The ranks with which it decides; none in a training of one process.
    pub(crate) ranks: Option<Arc<Ranks>>,
}

/// A scaler that moves the loss scale of this handle: that of an optimizer whose gradients its scopes have scaled and unscaled.
impl From<&MixedPrecision> for Scaler {
    fn from(amp: &MixedPrecision) -> Self {
        Self::new(amp.live().clone(), Some(amp.clone()))
    }
}

/// A scaler that moves this loss scale, by its settings and its rule, and multiplies losses by it.
impl TryFrom<LossScale> for Scaler {
    type Error = AmpError;

    fn try_from(schedule: LossScale) -> Result<Self, AmpError> {
        Ok(Self::of_schedule(schedule.check_rule()?))
    }
}

/// A copy of a scaler with a scale that it shares with nobody: what the scaler has come to.
pub fn detached(scaler: &Scaler) -> Scaler {
    scaler.with_scale(Arc::new(scaler.live.detached()), None)
}

/// A clone counts on by itself. One with a scale of its own has a copy of that; nobody follows it yet.
impl Clone for Scaler {
    fn clone(&self) -> Self {
        match self.amp {
            Some(_) => self.at(self.place.forked(&self.live)),
            None => detached(self),
        }
    }
}

/// The scale, and who has it.
impl Scaler {
    fn new(live: Arc<LiveScale>, amp: Option<MixedPrecision>) -> Self {
        Self {
            place: Place::new(&live, Account::default()),
            watch: LossWatch::default(),
            dropped: Dropped::default(),
            opened: live.opened(),
            warned_of_no_scope: false,
            buffers: Buffers::since(live.overflows()),
            ranks: None,
            live,
            amp,
        }
    }

    /// One that scales losses by a scale of its own.
    pub(crate) fn of_schedule(schedule: LossScale) -> Self {
        let live = Arc::new(LiveScale::of_scaler(schedule));
        Self::new(live, None)
    }

    /// A copy at this place of the same scale.
    pub(crate) fn at(&self, place: Arc<Place>) -> Self {
        Self {
            live: self.live.clone(),
            amp: self.amp.clone(),
            place,
            watch: self.watch.clone(),
            dropped: self.dropped.clone(),
            opened: self.opened,
            warned_of_no_scope: self.warned_of_no_scope,
            buffers: self.buffers.clone(),
            ranks: self.ranks.clone(),
        }
    }

    /// A copy that moves another scale.
    fn with_scale(&self, live: Arc<LiveScale>, amp: Option<MixedPrecision>) -> Self {
        let account = self.account(|account| account.clone());
        let mut copy = self.at(Place::new(&live, account));
        (copy.live, copy.amp, copy.ranks) = (live, amp, None);
        copy
    }

    /// A copy with a scale of its own, for a thread to test gradients by.
    pub(crate) fn snapshot(&self) -> Self {
        let amp = self.amp.as_ref().map(MixedPrecision::detached);
        let live = match &amp {
            Some(amp) => amp.live().clone(),
            None => Arc::new(self.live.detached()),
        };
        Self {
            watch: LossWatch::default(),
            // The thread that trains looks at that.
            warned_of_no_scope: true,
            ..self.with_scale(live, amp)
        }
    }

    /// The `MixedPrecision` whose loss scale this moves; none of a scaler that scales losses itself.
    pub fn precision(&self) -> Option<&MixedPrecision> {
        self.amp.as_ref()
    }

    fn account<T>(&self, look: impl FnOnce(&mut Account) -> T) -> T {
        self.live.account(self.place.id, look)
    }

    /// An iteration waits for its steps from now on. It `begins` to test gradients; an optimizer is waited for as soon as it is there.
    pub(crate) fn expect(&self, begins: bool) {
        self.live.expect(self.place.id, begins);
    }

    /// Enters a call that was to step, and has not.
    pub(crate) fn enter(&self, call: Call) {
        self.live.enter(self.place.id, call, Some(Caller::here()));
    }

    /// Says whether a device can move the scale: nobody else does, nor wants to see the gradients.
    pub(crate) fn can_step_on_device(&self) -> bool {
        self.is_enabled()
            && self.amp.is_some()
            && self.observer().is_none()
            && !self.live.is_shared(Some(self.place.id))
            && self.live.on_device().is_some()
    }

    /// A scale that is on a device, for the scopes of this.
    pub(crate) fn device_step_at(&self, scale: DeviceScale) -> DeviceStep {
        DeviceStep::new(scale, Arc::downgrade(&self.place.seat))
    }

    /// Starts again: the schedule at its initial scale, counters at zero. Settings stay.
    pub fn reset(&mut self) {
        let schedule = self.schedule().restarted();
        self.restart_at(StepCounters::default());
        self.live.restart_at(schedule);
        let restarted = self.live.regions.lock().restart();
        drop(restarted);
        self.live.show(self.place.id, true);
    }

    /// Says whether losses are scaled and gradients tested.
    pub fn is_enabled(&self) -> bool {
        self.live.config().enabled
    }

    /// The settings, those changed by setters included.
    pub fn config(&self) -> GradScalerConfig {
        self.live.config()
    }

    /// The state of the schedule.
    pub fn schedule(&self) -> LossScale {
        self.live.schedule()
    }

    /// Steps taken and skipped since this scaler was built.
    pub fn counters(&self) -> StepCounters {
        self.account(|account| account.counters)
    }

    /// The outcome of the last call of `step`, `accumulate`, `flush`, `observe` or `discard`, of this scaler or of the optimizer
    /// that it belongs to; none before the first, and where it returned an error for gradients that were not counted.
    pub fn last_outcome(&self) -> Option<StepOutcome> {
        self.account(|account| account.last.outcome)
    }

    /// The measures of the gradients of the last such call, before clipping; none if they were not tested: of a micro-batch in a
    /// window that is tested as a whole, and of a disabled scaler that does not clip.
    pub fn last_status(&self) -> Option<GradientStatus> {
        let status = self.account(|account| account.last.status.clone());
        status.map(|status| GradientStatus::clone(&status))
    }
}

/// The test of gradients.
impl Scaler {
    /// Divides gradients by the loss scale, and tests them: see `GradScaler::unscale`. What was found counts where
    /// they are dropped, too.
    pub(crate) fn unscale<M: Module>(
        &self,
        grads: ScaledGradients,
        module: &M,
    ) -> Result<UnscaledGradients, AmpError> {
        let entries = Entries::of(grads.params(), module)?;
        let in_own_dtype = self.config().parameter_dtype_gradients;
        let mut grads = self.test(grads.into(), &entries, in_own_dtype)?;
        if let Some(ranks) = &self.ranks {
            self.agree(ranks, &mut grads, &mut None)?;
        }
        Ok(self.registered(grads))
    }

    /// Remembers what was found in gradients until they are stepped with, observed, discarded or dropped.
    pub(crate) fn registered(&self, mut grads: UnscaledGradients) -> UnscaledGradients {
        if self.is_enabled() {
            let (finding, ids) = (grads.finding.clone(), ids_of(&grads.entries));
            grads.pending.push(self.dropped.pending(finding, ids));
        }
        grads
    }

    /// Tests gradients, or adds them to a window: that is tested if it is full then, or if there are no others. The `loss` becomes that of all ranks.
    pub(crate) fn inspect(
        &mut self,
        window: Option<&mut AccumulationWindow>,
        grads: Option<StepGradients>,
        entries: Entries,
        loss: &mut Option<f64>,
    ) -> Result<Inspected, Failed> {
        if self.amp.is_none() && matches!(grads, Some(StepGradients::Plain(_))) && self.is_enabled()
        {
            self.watch.check_plain();
        }
        let mut last = None;
        let mut tested = match (window, grads) {
            (None, Some(grads)) => {
                let in_own_dtype = self.live.config().parameter_dtype_gradients;
                self.test(grads, &entries, in_own_dtype)?
            }
            (Some(window), Some(grads)) => {
                let (outcome, status) = self.add_micro_batch(window, grads, &entries)?;
                if outcome == StepOutcome::Dropped || !window.is_full() {
                    self.enter(Call::of(outcome, status));
                    return Ok(Inspected::Waits(outcome));
                }
                last = status;
                self.empty(window, entries.sums)?
            }
            (Some(window), None) => self.empty(window, entries.sums)?,
            (None, None) => return Ok(Inspected::Waits(StepOutcome::NoGradients)),
        };
        if let Some(ranks) = &self.ranks {
            self.agree(ranks, &mut tested, loss)?;
        }
        Ok(Inspected::Tested(tested.into(), last))
    }

    /// Unscales and tests gradients of any kind: into f32 (f64 for f64 parameters) or the parameter's dtype.
    pub(crate) fn test(
        &self,
        grads: StepGradients,
        entries: &Entries,
        in_own_dtype: bool,
    ) -> Result<UnscaledGradients, AmpError> {
        let found = || entries.gradients.clone();
        let tested = match grads {
            StepGradients::Unscaled(grads) => return Ok(grads),
            grads if !self.is_enabled() => {
                let grads = grads.into_params();
                return Ok(UnscaledGradients::new(grads, found(), None));
            }
            StepGradients::Scaled(ScaledGradients { params, scale }) => {
                let is_own = self.amp.is_none() && SCALES_LOSSES.take();
                if is_own && entries.has_scopes && SCALES_GRADIENTS.take() {
                    warn_of_two_scales();
                }
                // Rounded to f32 where it multiplies, as in PyTorch.
                let inverse = 1.0 / f64::from(scale);
                let edge = self.schedule().edge();
                unscale(params, found(), inverse, in_own_dtype, edge)?
            }
            StepGradients::Plain(grads) => self.test_plain(grads, entries)?,
        };
        Ok(self.explained(tested, None))
    }

    /// Tests gradients that are not scaled, as they are: those of Burn's own `backward`.
    ///
    /// Where they overflow after scopes of a [`MixedPrecision`], waits once more, to find out whether the loss scale is the cause.
    /// Where its scopes cast the parameters, an adapter that casts its base by hand is refused.
    fn test_plain(
        &self,
        grads: GradientsParams,
        entries: &Entries,
    ) -> Result<UnscaledGradients, AmpError> {
        match &self.amp {
            Some(amp) => {
                if let Some(parameter) = entries.adapted.clone().filter(|_| amp.is_scaled()) {
                    let name = LOW_RANK.to_string();
                    return Err(AmpError::UnfrozenBase { parameter, name });
                }
            }
            None if entries.has_scopes => warn_once!(
                "this optimizer adjusts a loss scale of its own, which the model's `MixedPrecision` does not use: \
                 build it with `ScaledOptimizer::new(optim, &amp)`"
            ),
            _ => {}
        }
        let (unread, events) = match self.live.has_regions() {
            true => self.live.take_measures(),
            false => Default::default(),
        };
        let edge = self.live.schedule().edge();
        let pass = handles(&grads, &entries.gradients, edge);
        let (statuses, event_statuses) = pass.inspect(events)?;
        if !unread.is_empty() {
            (self.live.events).restore(BorderEvent::read(unread, event_statuses));
        }
        let found = entries.gradients.clone();
        Ok(UnscaledGradients::new(grads, found, Some(statuses)))
    }

    /// Warns, once, if no scope was open since the last step: its gradients say nothing of this scale.
    pub(crate) fn check_scopes(&mut self) {
        let Some(amp) = &self.amp else {
            return;
        };
        SCALES_GRADIENTS.set(false);
        if SCALES_LOSSES.take() && amp.is_scaled() {
            warn_of_two_scales();
        }
        let opened = self.live.opened();
        let unused = opened == self.opened && is_half(amp.dtype().into());
        self.opened = opened;
        if unused && !std::mem::replace(&mut self.warned_of_no_scope, true) {
            warn!(
                "no `autocast` of this optimizer's `MixedPrecision` was entered since its last step, so the forward pass ran in f32, or with \
                 another `MixedPrecision`: run it in `amp.autocast(input, |x| model.forward(x))`, in a Learner's model in the free `autocast`, \
                 and give clones of one `MixedPrecision` to model and optimizer"
            );
        }
    }

    /// Adds the cause of a skip, if the gradients overflow: of a window by what came to the border in it.
    fn explained(
        &self,
        mut grads: UnscaledGradients,
        window: Option<VecDeque<BorderEvent>>,
    ) -> UnscaledGradients {
        let (live, id) = (&self.live, self.place.id);
        if grads.finding.skips() {
            let mut cause = match window {
                Some(events) => live.cause_of(BorderEvent::of_skip(events), grads.overflows()),
                None => live.cause_of_skip(id, &ids_of(&grads.entries), grads.overflows()),
            };
            // Ranks that vote explain it together.
            if self.ranks.is_none() {
                cause = cause.counted(|| grads.has_nan());
            }
            grads.finding.explain(cause);
        } else if let Some(window) = window {
            live.events.restore_window(window);
        }
        live.note_test(id, || ids_of(&grads.entries));
        if let Some(observer) = self.observer() {
            observer.tested(&grads, self.loss_scale());
        }
        grads
    }

    /// Shows gradients to those who look at them before they are counted: to regions, and to the warning of zeros.
    pub(crate) fn look_at(&self, found: &Finding, status: Option<&GradientStatus>) {
        // Micro-batches were checked one by one, beside their losses.
        if found.is_resolved || !self.is_enabled() {
            return;
        }
        if !found.skips() && self.live.has_regions() {
            self.live.read_measures();
        }
        let is_new = || !self.account(|account| account.warned_of_zeros);
        if let Some(status) = status
            && found.measures.are_all_zero()
            && !self.live.is_idle()
            && is_new()
            && (self.watch.is_scaled() || self.live.events.have_arrived())
        {
            let scale = self.live.scale();
            self.account(|account| account.warn_of_zeros(status, scale));
        }
    }

    /// Ends a step that is an iteration by itself: counts it, and moves the scale.
    pub(crate) fn end_step(
        &mut self,
        found: &Finding,
        status: Option<Arc<GradientStatus>>,
    ) -> Result<StepOutcome, AmpError> {
        self.look_at(found, status.as_deref());
        if self.amp.is_none() {
            self.watch.start();
        }
        (self.live).end(self.place.id, found, status, Caller::here())
    }

    /// The observer of its `MixedPrecision`, if there is one.
    fn observer(&self) -> Option<Arc<dyn Observer>> {
        let is_observed = self.live.is_observed.load(Ordering::Relaxed);
        self.amp.as_ref().filter(|_| is_observed)?.observer()
    }

    /// Notifies the observer of its `MixedPrecision` that a step is over.
    pub(crate) fn notify(&self, outcome: Option<StepOutcome>, error: Option<&AmpError>) {
        if let Some(observer) = self.observer() {
            let status = self.last_status();
            observer.stepped(Stepped {
                optimizer: self.place.id.optimizer,
                is_iteration_open: self.live.is_in_iteration(),
                outcome,
                loss_scale: self.loss_scale(),
                status: status.as_ref(),
                error,
            });
        }
    }
}

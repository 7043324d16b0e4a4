//! [`GradScaler`]: scales losses, unscales gradients, steps optimizers.
//!
//! For one loss and one optimizer, [`ScaledOptimizer`](crate::ScaledOptimizer) does all of this in its `step`.
//! A program that calls each part itself uses the scaler alone:
//!
//! ```
//! use burn::{
//!     module::Module, nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::GradScalerConfig;
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 2).init(&device);
//! let mut optim = SgdConfig::new().init();
//! let mut scaler = GradScalerConfig::new().init()?;
//!
//! for _ in 0..3 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let loss = model.forward(input).mean();
//!
//!     let grads = scaler.backward(loss, &model);
//!     let grads = scaler.unscale(grads, &model);
//!     model = scaler.try_step(&mut optim, 0.1, model, grads)?;
//!     scaler.update();
//! }
//! assert_eq!(scaler.counters().steps(), 3);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use std::sync::{Arc, Once};

mod accumulate;
mod ahead;
mod apart;
mod learning;
mod record;
mod settings;

pub(crate) use apart::{Noted, Reached};
pub(crate) use record::ScalerState;

use crate::{
    cast::{CastFloat, multiply_losses},
    entries::{Entries, Entry, Traversal},
    error::{AmpError, StepError},
    gradient_status::GradientStatus,
    gradients::{ScaledGradients, StepGradients, UnscaledGradients},
    iteration::{Iteration, OBSERVED, Unsettled},
    live_scale::LiveScale,
    loss_scale::{GradScalerConfig, LossScale, Observation, StepOutcome},
    loss_watch::LossWatch,
    mixed_precision::MixedPrecision,
    module_optim::ModuleOptim,
    running_statistics::{RunningStatistics, Statistics},
    step_counters::StepCounters,
    step_log::{OwnLog, StepLog},
    unscale::{pass_through, test, unscale},
};

impl GradScalerConfig {
    /// Checks the settings and builds the scaler.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Self::schedule).
    pub fn init(&self) -> Result<GradScaler, AmpError> {
        self.schedule().map(GradScaler::new)
    }
}

/// Scales losses, unscales and tests gradients, skips steps that overflow, and moves the loss scale.
///
/// The counterpart of PyTorch's `torch.amp.GradScaler` (same names, defaults and arithmetic), after
/// "Mixed Precision Training" (Micikevicius et al., 2018). Built by
/// [`GradScalerConfig::init`].
///
/// A value: a clone is independent, with two exceptions. Clones of the scaler of a [`MixedPrecision`] share its loss scale. And a
/// loss that a clone has scaled since the last [`update`](Self::update) counts as scaled for the original too, so that workers may
/// scale with clones. A [`ScaledLrScheduler`](crate::ScaledLrScheduler) does not follow a clone. It waits for the device where it tests
/// gradients, once: in [`unscale`](Self::unscale), or in [`accumulate`](Self::accumulate) and [`flush`](Self::flush).
#[derive(Clone, Debug)]
pub struct GradScaler {
    pub(crate) schedule: LossScale,
    pub(crate) counters: StepCounters,
    pub(crate) iteration: Iteration,
    last_outcome: Option<StepOutcome>,
    last_status: Option<GradientStatus>,
    watch: LossWatch,
    unsettled: Unsettled,
    warned_of_nothing: bool,
    /// Gradients in a row that were discarded and that nobody has tested.
    untested: u32,
    border: Option<Border>,
    log: OwnLog,
    statistics: RunningStatistics,
    /// Whether a forward pass may have overflowed of which no step knows: its gradients were thrown away.
    suspicious: bool,
}

/// The loss scale of a [`MixedPrecision`], which its scopes apply and this scaler moves.
#[derive(Clone, Debug)]
struct Border {
    amp: MixedPrecision,
    member: Arc<()>,
    /// Of this optimizer, wherever clones of it step.
    log: StepLog,
    /// The scopes that were open at the last step.
    opened: u64,
    warned: bool,
    /// The skips of all optimizers after which the running statistics were looked at.
    skips: u64,
}

impl Border {
    fn new(amp: &MixedPrecision) -> Self {
        Self {
            amp: amp.clone(),
            member: amp.live().join(),
            log: StepLog::default(),
            opened: amp.live().opened(),
            warned: false,
            skips: amp.live().skips(),
        }
    }
}

/// A scaler that moves the loss scale of this handle.
impl From<&MixedPrecision> for GradScaler {
    fn from(amp: &MixedPrecision) -> Self {
        Self::at_border(amp)
    }
}

impl GradScaler {
    pub(crate) fn new(schedule: LossScale) -> Self {
        Self {
            schedule,
            counters: StepCounters::default(),
            iteration: Iteration::default(),
            last_outcome: None,
            last_status: None,
            watch: LossWatch::default(),
            unsettled: Unsettled::default(),
            warned_of_nothing: false,
            untested: 0,
            border: None,
            log: OwnLog::default(),
            statistics: RunningStatistics::default(),
            suspicious: false,
        }
    }

    /// The scaler of an optimizer whose gradients the scopes of `amp` have scaled and unscaled.
    pub(crate) fn at_border(amp: &MixedPrecision) -> Self {
        Self {
            border: Some(Border::new(amp)),
            ..Self::new(amp.live().schedule())
        }
    }

    /// Is heard by itself before an iteration ends, and not as the scaler that it was cloned from.
    #[cfg(feature = "train")]
    pub(crate) fn join(&mut self) {
        if let Some(border) = &mut self.border {
            border.member = border.amp.live().join();
        }
    }

    /// Is no longer waited for before an iteration ends.
    #[cfg(feature = "train")]
    pub(crate) fn leave(&mut self) {
        if let Some(border) = &mut self.border {
            border.member = Arc::default();
        }
    }

    /// The `MixedPrecision` whose loss scale this moves; none of a scaler that scales losses itself.
    pub fn precision(&self) -> Option<&MixedPrecision> {
        self.border.as_ref().map(|border| &border.amp)
    }

    pub(crate) fn set_schedule(&mut self, schedule: LossScale) {
        match &self.border {
            Some(border) => border.amp.live().set_schedule(schedule),
            None => self.schedule = schedule,
        }
    }

    /// What this scaler itself multiplies losses by: nothing where scopes do it.
    pub(crate) fn loss_factor(&self) -> f32 {
        match self.border {
            Some(_) => 1.0,
            None => self.loss_scale(),
        }
    }

    /// Multiplies a loss, or a structure of losses, by the loss scale.
    ///
    /// Takes what [`CastFloat`] is implemented for: tensors, `Vec`, arrays, tuples and `Option` of them, and structures of your
    /// own by [`cast_fields!`](crate::cast_fields).
    ///
    /// Tensors of any rank and float dtype. The product is taken in f32 and stays f32 for f16, bf16 and f32
    /// losses, so that an f16 loss does not turn into infinity here; an f64 loss stays f64. Disabled: the
    /// losses are returned as they are. Does not wait for the device.
    ///
    /// The way *back* through an f16 loss still passes an f16 gradient, which cannot hold 65536: reduce the loss
    /// itself in f32 (cast the logits), or the first steps will overflow until the scale fits.
    pub fn scale<T: CastFloat>(&self, loss: T) -> T {
        self.multiply(loss, self.loss_factor())
    }

    fn multiply<T: CastFloat>(&self, loss: T, scale: f32) -> T {
        if !self.is_enabled() {
            return loss;
        }
        let (scaled, seen) = multiply_losses(loss, scale);
        self.watch.see(seen);
        scaled
    }

    /// Scales the loss, runs the backward pass and collects the gradients of `module`'s parameters.
    ///
    /// Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`].
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        self.backward_at(self.loss_factor(), loss, module)
    }

    /// As [`backward`](Self::backward), with another loss scale than the present one.
    pub(crate) fn backward_at<const D: usize, M: Module>(
        &self,
        scale: f32,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        let grads = self.multiply(loss, scale).backward();
        ScaledGradients::new(GradientsParams::from_grads(grads, module), scale)
    }

    /// The gradients of a loss times `scale`, of which nothing is remembered.
    pub(crate) fn scaled_gradients<const D: usize, M: Module>(
        scale: f32,
        loss: Tensor<D>,
        module: &M,
    ) -> GradientsParams {
        GradientsParams::from_grads(multiply_losses(loss, scale).0.backward(), module)
    }

    /// The loss scale after [`settle_dropped`](Self::settle_dropped).
    pub(crate) fn settled_loss_factor(&self) -> f32 {
        if self.border.is_some() || !self.is_enabled() {
            return self.loss_factor();
        }
        let mut iteration = self.iteration.clone();
        self.unsettled.look(|verdict| iteration.learn(verdict));
        match iteration.observation() {
            Some(seen) => self.schedule.learn(seen).scale(),
            None => self.loss_factor(),
        }
    }

    /// Marks gradients of a loss that went through [`scale`](Self::scale) since the last [`update`](Self::update) as scaled
    /// by the present loss scale.
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
    /// # use burn_amp::GradScalerConfig;
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(4, 2).init(&device);
    /// # let loss = model.forward(Tensor::<2>::ones([1, 4], &device)).mean();
    /// let scaler = GradScalerConfig::new().init()?;
    /// let grads = scaler.scale(loss).backward();
    /// let grads = scaler.scaled(GradientsParams::from_grads(grads, &model));
    /// assert_eq!(grads.loss_scale(), 65536.0);
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Where [`try_scaled`](Self::try_scaled) returns an error, with its message.
    pub fn scaled(&self, grads: GradientsParams) -> ScaledGradients {
        self.try_scaled(grads)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`scaled`](Self::scaled), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossNotScaled`] if neither this scaler nor a copy of it has scaled a loss since the last
    /// [`update`](Self::update): the gradients of a plain loss are not scaled, and must not be divided.
    pub fn try_scaled(&self, grads: GradientsParams) -> Result<ScaledGradients, AmpError> {
        let scales = self.is_enabled() && self.border.is_none();
        match scales && !self.watch.is_scaled() {
            true => Err(AmpError::LossNotScaled),
            false => Ok(ScaledGradients::new(grads, self.loss_factor())),
        }
    }

    /// Divides gradients by the loss scale and looks for values that are not finite.
    ///
    /// Takes what [`backward`](Self::backward) or [`scaled`](Self::scaled) gives. Gradients come out in f32 for f16, bf16
    /// and f32 parameters and in f64 for f64 ones ([`parameter_dtype_gradients`](GradScalerConfig::parameter_dtype_gradients) can change that). The inverse of the
    /// scale is taken in f64 and rounded to f32 once, as in PyTorch; with a scale that is a power of two the result
    /// is that of an unscaled f32 step, bit for bit, except where it is subnormal.
    ///
    /// Gradients of parameters that are not in `module` are dropped, as Burn's optimizers ignore them.
    /// Disabled: gradients pass as they are, and the status has only their number.
    ///
    /// Waits for the device: one small transfer for all gradients (one for each device, if there are several).
    ///
    /// # Panics
    ///
    /// Where [`try_unscale`](Self::try_unscale) returns an error, with its message.
    pub fn unscale<M: Module>(&self, grads: ScaledGradients, module: &M) -> UnscaledGradients {
        self.try_unscale(grads, module)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`unscale`](Self::unscale), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype, [`AmpError::GradientShape`] if
    /// a gradient does not have its parameter's shape.
    pub fn try_unscale<M: Module>(
        &self,
        grads: ScaledGradients,
        module: &M,
    ) -> Result<UnscaledGradients, AmpError> {
        let entries = Entries::of(grads.params(), module)?.into_gradients();
        let in_own_dtype = self.config().parameter_dtype_gradients;
        let grads = self.unscale_entries(grads, entries, in_own_dtype)?;
        Ok(self.registered(grads))
    }

    /// Remembers what gradients have told until they are stepped with, observed, discarded or dropped.
    pub(crate) fn registered(&self, grads: UnscaledGradients) -> UnscaledGradients {
        match self.is_enabled() {
            true => self.unsettled.register(grads),
            false => grads,
        }
    }

    /// What these gradients have told is counted by the caller.
    pub(crate) fn take_verdict(&self, grads: &UnscaledGradients) {
        self.unsettled.take(grads);
    }

    /// Divides gradients by their loss scale, into f32 (f64 for f64 parameters) or the parameter's dtype.
    pub(crate) fn unscale_entries(
        &self,
        grads: ScaledGradients,
        entries: Vec<Entry>,
        in_own_dtype: bool,
    ) -> Result<UnscaledGradients, AmpError> {
        if !self.is_enabled() {
            return Ok(pass_through(grads.into_params(), entries));
        }
        // As PyTorch.
        let inverse = f64::from((1.0 / f64::from(grads.loss_scale())) as f32);
        let grads = grads.into_params();
        Ok(self.blamed(unscale(
            grads,
            entries,
            inverse,
            in_own_dtype,
            self.schedule().edge(),
        )?))
    }

    /// Tests gradients that are not scaled, as they are: those of Burn's own `backward`.
    ///
    /// Where they overflow after scopes of a [`MixedPrecision`], waits once more, to learn whether the loss scale is to blame.
    /// Where its scopes cast the parameters, an adapter that casts its base by hand is refused.
    pub(crate) fn test(
        &self,
        grads: GradientsParams,
        entries: &Entries,
    ) -> Result<UnscaledGradients, AmpError> {
        let found = entries.gradients().cloned().collect();
        if !self.is_enabled() {
            return Ok(pass_through(grads, found));
        }
        match self.precision() {
            Some(amp) if amp.is_scaled() => {
                if let Some((parameter, name)) = entries.adapted.clone() {
                    return Err(AmpError::UnfrozenBase { parameter, name });
                }
            }
            None if entries.has_scopes => warn_of_another_scale(),
            _ => {}
        }
        let live = self.precision().map(MixedPrecision::live);
        let (places, crossings) = live.map(LiveScale::take_statistics).unwrap_or_default();
        let (grads, crossed) = test(grads, found, self.schedule().edge(), crossings)?;
        if let Some(live) = live {
            live.put_back(places.into_iter().zip(crossed));
        }
        Ok(self.blamed(grads))
    }

    /// Warns, once, if no scope was open since the last step: its gradients say nothing of this scale.
    pub(crate) fn check_scopes(&mut self) {
        let Some(border) = &mut self.border else {
            return;
        };
        let opened = border.amp.live().opened();
        let unused = opened == border.opened && border.amp.is_scaled();
        border.opened = opened;
        if unused && !border.warned {
            border.warned = true;
            log::warn!(
                "no `autocast` of this optimizer's `MixedPrecision` was entered since its last step, so its loss scale cannot \
                 adjust itself: give the optimizer the `MixedPrecision` of the model, not another one (clones share one scale)"
            );
        }
    }

    /// Notes what an overflow is to be blamed on.
    pub(crate) fn blamed(&self, grads: UnscaledGradients) -> UnscaledGradients {
        let grads = match &self.border {
            Some(border) if grads.has_overflow() => {
                let blame = border.amp.live().blame(grads.overflows());
                grads.blamed(blame)
            }
            Some(border) => {
                border.amp.live().read_statistics();
                grads
            }
            None => grads,
        };
        self.show(&grads);
        grads
    }

    /// Steps the optimizer, or skips the step if the gradients overflow, and records which it was.
    ///
    /// On a skipped step the module is returned unchanged and the optimizer is not called. Without any
    /// gradients (an empty module, frozen parameters, a loss that reached none of them) the optimizer is called
    /// with none and the step is counted, but the loss scale learns nothing from it; the first such step warns. Call
    /// [`update`](Self::update) once after all steps of the iteration. [`last_outcome`](Self::last_outcome) returns what this
    /// call has done.
    ///
    /// Reads the losses, to warn, where all gradients are zero and at the first, second, fourth, eighth step and so on. Does
    /// not wait for the device otherwise.
    ///
    /// # Panics
    ///
    /// Where [`try_step`](Self::try_step) returns an error, with its message.
    pub fn step<O: ModuleOptim, M: Module>(
        &mut self,
        optim: &mut O,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: UnscaledGradients,
    ) -> M {
        self.try_step(optim, lr, module, grads)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`step`](Self::step), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// The error has the unchanged module. [`AmpError::LossScaleExhausted`] if the gradients overflow after
    /// `max_consecutive_skips` skips in a row, or where the scale cannot go lower if
    /// [`raise_error_at_min_scale`](GradScalerConfig::raise_error_at_min_scale) is set; the step is counted as skipped. Of a
    /// window whose micro-batches were tested one by one
    /// ([`skip_micro_batch`](crate::AccumulationConfig::skip_micro_batch)) only the former: its sum overflows by itself.
    /// [`AmpError::HalfPrecisionParameter`] if the optimizer cannot combine a parameter with its gradient, and
    /// [`AmpError::UpdateMissing`] if these parameters were stepped already, [`AmpError::GradientShape`] if a gradient does not have
    /// its parameter's shape, [`AmpError::InvalidValue`] for a learning rate that is infinite or NaN; nothing is counted then. Neither
    /// parameters, optimizer state nor loss scale change on any of them.
    pub fn try_step<O: ModuleOptim, M: Module>(
        &mut self,
        optim: &mut O,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: UnscaledGradients,
    ) -> Result<M, StepError<M>> {
        let lr = lr.into();
        self.forget_last_call();
        self.unsettled.take(&grads);
        // Gradients may have been changed since they were tested.
        let traversal = Traversal {
            grads: Some(grads.params()),
            lr: Some(&lr),
            ..Default::default()
        };
        let decided = traversal.of(&module).and_then(|mut entries| {
            let has_statistics = self.meet_statistics(entries.take_statistics());
            let decided = self.decide(optim, grads);
            self.end_call(&module, has_statistics, false);
            decided
        });
        match decided {
            Ok(Some(grads)) => Ok(optim.step(lr, module, grads)),
            Ok(None) => Ok(module),
            Err(error) => Err(self.failed(module, error)),
        }
    }

    /// Before a step, or a micro-batch, of a module with these running statistics; whether there are any.
    pub(crate) fn meet_statistics(&mut self, statistics: Statistics) -> bool {
        let has_statistics = !statistics.is_empty() && self.is_enabled();
        if has_statistics {
            self.statistics.meet(statistics);
        }
        has_statistics
    }

    /// Tells those who follow the steps, and looks after the running statistics of a module: an overflow in the forward pass
    /// leaves NaN in them, and a skip does not take it back by itself. Waits for the device only where something was skipped.
    pub(crate) fn end_call<M: Module>(
        &mut self,
        module: &M,
        has_statistics: bool,
        tests_micro_batches: bool,
    ) {
        self.log_call();
        let (lost, clean) = match self.last_outcome {
            Some(StepOutcome::Skipped | StepOutcome::Dropped) => (true, false),
            Some(StepOutcome::Stepped) => (false, true),
            Some(StepOutcome::Accumulated) => (false, tests_micro_batches),
            _ => (false, false),
        };
        // Another optimizer's forward pass may have gone through this module.
        if let Some(border) = &mut self.border {
            let skips = border.amp.live().skips();
            self.suspicious |= border.skips != skips;
            border.skips = if lost {
                border.amp.live().add_skip()
            } else {
                skips
            };
        }
        if has_statistics && (lost || (clean && self.suspicious)) {
            self.statistics.repair(module);
            self.suspicious = false;
        }
        if has_statistics && clean {
            self.statistics.keep(module);
        }
    }

    /// The error that gives the module back. Whatever was wrong, no step was taken.
    pub(crate) fn failed<M>(&self, module: M, error: AmpError) -> StepError<M> {
        self.log_call();
        StepError::new(module, error)
    }

    /// Tells those who follow the steps whether the last call has stepped.
    pub(crate) fn log_call(&self) {
        let stepped = self.last_outcome == Some(StepOutcome::Stepped);
        self.step_log().record(stepped);
        if let Some(border) = &self.border {
            border.amp.step_log().record(stepped);
        }
    }

    pub(crate) fn step_log(&self) -> &StepLog {
        match &self.border {
            Some(border) => &border.log,
            None => &self.log.0,
        }
    }

    pub(super) fn forget_statistics(&mut self) {
        self.statistics = RunningStatistics::default();
    }

    /// Gradients of a forward pass that has overflowed were thrown away.
    pub(super) fn suspect_statistics(&mut self) {
        self.suspicious = true;
    }

    /// At the begin of each call that may step: what the last one has done is over.
    pub(crate) fn forget_last_call(&mut self) {
        self.last_outcome = None;
        self.last_status = None;
    }

    pub(crate) fn set_outcome(&mut self, outcome: StepOutcome) {
        self.last_outcome = Some(outcome);
    }

    /// Counts the step, and gives the gradients back if it is not to be skipped.
    pub(crate) fn decide<O: ModuleOptim>(
        &mut self,
        optim: &O,
        grads: UnscaledGradients,
    ) -> Result<Option<GradientsParams>, AmpError> {
        self.unsettled.take(&grads);
        let entries = grads.entries().iter();
        check_accepted(optim, entries.map(|entry| (entry, entry.gradient)))?;
        let optimizer = std::ptr::from_ref(optim).addr();
        self.iteration.check(&grads, optimizer)?;
        self.look_at_losses(&grads);
        self.record(&grads, optimizer)?;
        Ok((!grads.has_overflow()).then(|| grads.into_tested()))
    }

    /// Counts a step that a guard holds back; an error if it is one too many. The loss scale learns nothing.
    pub(crate) fn hold<O: ModuleOptim>(
        &mut self,
        optim: &O,
        grads: UnscaledGradients,
        reason: String,
        is_finite: bool,
    ) -> Result<(), AmpError> {
        self.unsettled.take(&grads);
        let entries = grads.entries().iter();
        check_accepted(optim, entries.map(|entry| (entry, entry.gradient)))?;
        let optimizer = std::ptr::from_ref(optim).addr();
        self.iteration.check(&grads, optimizer)?;
        self.look_at_losses(&grads);
        self.record_guarded(&grads, optimizer, reason)?;
        // A loss that is not finite may come of a forward pass that has spoilt them.
        self.suspicious |= !is_finite;
        Ok(())
    }

    /// Ends the iteration: backs the scale off if any of its gradients overflowed, counts towards growth if not.
    ///
    /// Gradients that were unscaled and dropped count too, as with PyTorch: as if they had been given to
    /// [`discard`](Self::discard). Returns the joint outcome, [`Stepped`](StepOutcome::Stepped) or
    /// [`Skipped`](StepOutcome::Skipped); none, and nothing changes, if no gradients were seen since the last update (PyTorch
    /// raises an error there). Does not wait for the device.
    ///
    /// # Panics
    ///
    /// Where [`try_update`](Self::try_update) returns an error, with its message.
    pub fn update(&mut self) -> Option<StepOutcome> {
        self.try_update().unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`update`](Self::update), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] or [`AmpError::LossNotFinite`] if gradients that were dropped are an overflow too many; the
    /// iteration is ended.
    pub fn try_update(&mut self) -> Result<Option<StepOutcome>, AmpError> {
        self.learn_from_dropped()?;
        let (seen, overflows) = self.end_iteration();
        if let Some(seen) = seen {
            if seen.outcome.is_stepped() {
                self.counters.reset_consecutive_skips();
            }
            self.adjust(seen, "step skipped", &overflows);
        }
        Ok(seen.map(|seen| seen.outcome))
    }

    /// Ends the iteration with a loss scale of the caller's choice, whatever the outcome was.
    ///
    /// PyTorch's `update(new_scale)`: the growth tracker stays.
    ///
    /// # Panics
    ///
    /// Where [`try_update_to`](Self::try_update_to) returns an error, with its message.
    pub fn update_to(&mut self, scale: f64) -> Option<StepOutcome> {
        self.try_update_to(scale)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`update_to`](Self::update_to), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the iteration not ended, unless `scale` is positive, finite as an f32 and within
    /// `min_scale` and `max_scale`. Otherwise as [`try_update`](Self::try_update).
    pub fn try_update_to(&mut self, scale: f64) -> Result<Option<StepOutcome>, AmpError> {
        let before = self.schedule().scale();
        self.set_loss_scale(scale)?;
        self.learn_from_dropped()?;
        let (seen, overflows) = self.end_iteration();
        let outcome = seen.map(|seen| seen.outcome);
        if self.is_enabled() && outcome.is_some_and(StepOutcome::is_skipped) {
            let after = self.schedule().scale();
            learning::log_skip(before, after, &overflows, "step skipped");
        }
        Ok(outcome)
    }

    /// Ends an iteration of which nothing is left but gradients that were dropped, if there are any.
    pub(crate) fn settle_dropped(&mut self) -> Result<(), AmpError> {
        self.learn_from_dropped()?;
        match self.iteration.outcome() {
            Some(_) => self.try_update().map(drop),
            None => Ok(()),
        }
    }

    /// Counts gradients that were unscaled and dropped as discarded ones.
    fn learn_from_dropped(&mut self) -> Result<(), AmpError> {
        for verdict in self.unsettled.dropped() {
            self.counters.record_discarded();
            self.suspicious |= verdict.overflow.is_some();
            self.learn_without_step(&verdict, "gradients dropped")?;
        }
        Ok(())
    }

    /// Starts again: the schedule at its initial scale, counters at zero. Settings stay.
    pub fn reset(&mut self) {
        let schedule = self.schedule().restarted();
        *self = Self {
            border: self.border.take(),
            log: std::mem::take(&mut self.log),
            ..Self::new(schedule)
        };
        self.set_schedule(schedule);
        if let Some(amp) = self.precision() {
            amp.live().restart_parts();
        }
    }

    /// Whether losses are scaled and gradients tested.
    pub fn is_enabled(&self) -> bool {
        self.config().enabled
    }

    /// The settings, those changed by setters included.
    pub fn config(&self) -> GradScalerConfig {
        *self.schedule().config()
    }

    /// The state of the schedule.
    pub fn schedule(&self) -> LossScale {
        match &self.border {
            Some(border) => border.amp.live().schedule(),
            None => self.schedule,
        }
    }

    /// Steps taken and skipped since this scaler was built.
    pub fn counters(&self) -> &StepCounters {
        &self.counters
    }

    /// What the last call of `step`, `accumulate`, `flush`, `observe` or `discard` has done, of this scaler or of the optimizer
    /// that it belongs to; none before the first, and where it returned an error for gradients that were not counted.
    pub fn last_outcome(&self) -> Option<StepOutcome> {
        self.last_outcome
    }

    /// The measures of the gradients of the last such call, before clipping; none if they were not tested: of a micro-batch in a
    /// window that is tested as a whole, and of a disabled scaler that does not clip.
    pub fn last_status(&self) -> Option<&GradientStatus> {
        self.last_status.as_ref()
    }

    fn end_iteration(&mut self) -> (Option<Observation>, Vec<String>) {
        self.watch.start();
        self.iteration.finish()
    }

    /// Keeps the status for those who ask for it later.
    pub(crate) fn remember(&mut self, grads: &UnscaledGradients) {
        // A disabled scaler knows something only where clipping has measured.
        let known = self.is_enabled() || grads.status().elements() > 0;
        self.last_status = known.then(|| grads.status().clone());
    }

    pub(crate) fn look_at_losses(&mut self, grads: &UnscaledGradients) {
        // Micro-batches were checked one by one, beside their losses.
        if self.is_enabled() && !grads.is_settled() {
            let scale = self.schedule().scale();
            let border = self.border.as_ref();
            let arrived = || border.is_some_and(|border| border.amp.live().has_gradients());
            self.watch.check(grads.status(), scale, arrived);
        }
    }

    /// Warns, once, of plain gradients that may be those of a scaled loss.
    pub(crate) fn check_plain(&mut self) {
        if self.is_enabled() && self.border.is_none() {
            self.watch.check_plain();
        }
    }

    pub(crate) fn forget_losses(&self) {
        self.watch.forget();
    }

    /// Counts unscaled gradients as a step of this scaler's without stepping on them: for gradients that are added to
    /// another scaler's (one scaler for each loss, Apex's `num_losses`) and stepped on there.
    ///
    /// Returns whether they overflow; the next [`update`](Self::update) moves the scale accordingly. Waits as
    /// [`step`](Self::step) does.
    ///
    /// # Panics
    ///
    /// Where [`try_observe`](Self::try_observe) returns an error, with its message.
    pub fn observe(&mut self, grads: &UnscaledGradients) -> StepOutcome {
        self.try_observe(grads)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`observe`](Self::observe), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] as [`try_step`](Self::try_step), and [`AmpError::UpdateMissing`] if the parameters
    /// were stepped or observed already.
    pub fn try_observe(&mut self, grads: &UnscaledGradients) -> Result<StepOutcome, AmpError> {
        self.forget_last_call();
        self.unsettled.take(grads);
        self.iteration.check(grads, OBSERVED)?;
        self.look_at_losses(grads);
        self.record(grads, OBSERVED)?;
        Ok(self.last_outcome.unwrap_or(StepOutcome::NoGradients))
    }

    /// Throws gradients away without a step, and counts that.
    ///
    /// If the gradients were unscaled, the next [`update`](Self::update) moves the loss scale as for a step (PyTorch:
    /// `unscale_` without `step`), and an overflow counts among the skips in a row. Gradients that nobody has tested, plain or
    /// still scaled ones, do not move it: many of them in a row warn, since an overflow would come again and again. Test them with
    /// [`unscale`](Self::unscale) before. Parameters, optimizer and the count of steps stay as they are, and the parameters can be
    /// stepped in the same iteration with other gradients. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// Where [`try_discard`](Self::try_discard) returns an error, with its message.
    pub fn discard(&mut self, grads: impl Into<StepGradients>) {
        self.try_discard(grads)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`discard`](Self::discard), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] or [`AmpError::LossNotFinite`] if the gradients are an overflow too many, as
    /// [`try_step`](Self::try_step); they are counted as discarded.
    pub fn try_discard(&mut self, grads: impl Into<StepGradients>) -> Result<(), AmpError> {
        self.forget_last_call();
        self.counters.record_discarded();
        self.last_outcome = Some(StepOutcome::Dropped);
        self.log_call();
        let grads = grads.into();
        if !matches!(&grads, StepGradients::Unscaled(grads) if !grads.has_overflow()) {
            self.suspect_statistics();
        }
        if !matches!(&grads, StepGradients::Unscaled(_)) && self.is_enabled() {
            self.warn_of_untested();
        }
        if let StepGradients::Unscaled(grads) = grads
            && self.is_enabled()
        {
            self.unsettled.take(&grads);
            self.remember(&grads);
            self.learn_without_step(&grads.verdict(), "gradients discarded")?;
        }
        if self.iteration.outcome().is_none() {
            self.forget_losses();
        }
        Ok(())
    }
}

/// Refuses gradients, each of a dtype, that an optimizer cannot combine with their parameters.
fn check_accepted<'a, O: ModuleOptim>(
    optim: &O,
    mut gradients: impl Iterator<Item = (&'a Entry, DType)>,
) -> Result<(), AmpError> {
    match gradients.find(|(entry, gradient)| !optim.accepts(entry.parameter, *gradient)) {
        Some((entry, gradient_dtype)) => Err(AmpError::HalfPrecisionParameter {
            parameter: entry.path.clone(),
            parameter_dtype: entry.parameter,
            gradient_dtype,
        }),
        None => Ok(()),
    }
}

fn warn_of_another_scale() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        log::warn!(
            "this optimizer adjusts a loss scale of its own, which the model's `MixedPrecision` does not use: \
             build it with `ScaledOptimizer::new(optim, &amp)`"
        );
    });
}

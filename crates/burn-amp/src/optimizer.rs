use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ParamGroup},
    optim::{ModuleOptimizer, MultiGradientsParams},
    tensor::{Bytes, Tensor},
};

use std::path::Path;

mod recorded;
mod unheard;

pub(crate) use recorded::{Found, Stage, refused};
use unheard::Unread;

use crate::{
    accumulation::{AccumulationConfig, AccumulationWindow},
    clip::GradientClip,
    ema::{Ema, EmaConfig},
    entries::Entries,
    error::{AmpError, StepError},
    fused::step_by,
    gradients::{ScaledGradients, StepGradients, UnscaledGradients, sum_of_devices},
    guard::{Guard, StepGuard},
    loss_scale::GradScalerConfig,
    module_optim::ModuleOptim,
    record::{AmpRecord, OptimizerState},
    scaler::GradScaler,
    step_options::{Decided, StepOptions},
};

/// An optimizer with loss scaling: [`step`](Self::step) unscales the gradients, tests them, steps the inner
/// optimizer or skips the step, and moves the loss scale.
///
/// Wraps anything that implements [`ModuleOptim`]: Burn's `ModuleOptimizer`, hence every optimizer with
/// its groups and its clipping (which sees unscaled gradients), a `&mut` to one, or a type of your own. The
/// counterpart of Keras's `LossScaleOptimizer`.
///
/// [`with_accumulation`](Self::with_accumulation), [`with_clipping`](Self::with_clipping), [`with_guard`](Self::with_guard) and
/// [`with_ema`](Self::with_ema) add to a step. The order is: accumulate, unscale, test, guard, clip, step or skip, average the weights,
/// update the scale.
///
/// A clone has the state of its moment, steps that are [under way](Self::step) included; the loss scale of a
/// [`MixedPrecision`](crate::MixedPrecision) is one for both.
#[derive(Clone)]
pub struct ScaledOptimizer<O = ModuleOptimizer> {
    optim: O,
    scaler: GradScaler,
    pub(crate) options: StepOptions,
    /// A loaded state, until the first step has compared it with the module.
    loaded: Option<OptimizerState>,
    unread: Unread,
}

/// An optimizer without loss scaling: its gradients are not tested.
impl<O: ModuleOptim> From<O> for ScaledOptimizer<O> {
    fn from(optim: O) -> Self {
        let config = GradScalerConfig::new().with_enabled(false);
        let schedule = config.schedule().expect("the defaults are valid");
        Self::new(optim, GradScaler::new(schedule))
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Wraps an optimizer. `scaler` is a [`&MixedPrecision`](crate::MixedPrecision), whose loss scale it adjusts, or a [`GradScaler`],
    /// for half-precision parameters.
    pub fn new(optim: O, scaler: impl Into<GradScaler>) -> Self {
        let scaler = scaler.into();
        Self {
            optim,
            scaler,
            options: StepOptions::default(),
            loaded: None,
            unread: Unread::default(),
        }
    }

    #[cfg(feature = "train")]
    pub(crate) fn from_parts(optim: O, scaler: GradScaler, options: StepOptions) -> Self {
        Self {
            options,
            ..Self::new(optim, scaler)
        }
    }

    /// Makes `step` take micro-batches: every n-th call steps, with their mean or their sum.
    ///
    /// Takes a number of micro-batches or an [`AccumulationConfig`]. A window that was open is dropped.
    ///
    /// ```
    /// use burn::optim::SgdConfig;
    /// use burn_amp::{AccumulationConfig, GradScalerConfig, ScaledOptimizer};
    ///
    /// let optim = ScaledOptimizer::new(SgdConfig::new().init(), GradScalerConfig::new().init()?);
    /// let optim = optim.with_accumulation(4)?;
    /// let optim = optim.with_accumulation(AccumulationConfig::new(4).with_skip_micro_batch(true))?;
    /// assert!(optim.window().unwrap().is_empty());
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] for 0 micro-batches.
    pub fn with_accumulation(
        mut self,
        config: impl Into<AccumulationConfig>,
    ) -> Result<Self, AmpError> {
        self.options.window = Some(config.into().init()?);
        Ok(self)
    }

    /// Clips gradients after they were unscaled and tested; see [`UnscaledGradients::clip`].
    ///
    /// Clipping that is configured on the inner optimizer comes after it. A [fused optimizer](crate::Fused) that has none multiplies gradients
    /// by the coefficients while it steps, in f32 and in no pass of its own; they are f32 numbers then, within 2^-21 of what f64 gives.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN.
    pub fn with_clipping(mut self, clip: GradientClip) -> Result<Self, AmpError> {
        clip.check("clip")?;
        // Those that are under way were clipped by the rules of before.
        self.settle_unheard();
        self.options.clip.all = Some(clip);
        Ok(self)
    }

    /// Clips the gradients of a group by another rule; the last group that matches counts. A global norm is that of its
    /// group alone, and [`with_clipping`](Self::with_clipping) is for the parameters that match no group.
    ///
    /// ```
    /// use burn::{module::ParamGroup, optim::SgdConfig};
    /// use burn_amp::{GradientClip, MixedPrecision, ScaledOptimizer};
    ///
    /// // The head's values are limited; all other gradients are one vector.
    /// let optim = ScaledOptimizer::new(SgdConfig::new().init(), &MixedPrecision::f16())
    ///     .with_clipping(GradientClip::GlobalNorm(1.0))?
    ///     .with_group_clipping(ParamGroup::from_predicate("head"), GradientClip::Value(0.1))?;
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN.
    pub fn with_group_clipping(
        mut self,
        group: ParamGroup,
        clip: GradientClip,
    ) -> Result<Self, AmpError> {
        clip.check("clip_groups")?;
        self.settle_unheard();
        self.options.clip.groups.push((group, clip));
        Ok(self)
    }

    /// Guards clean steps: one whose norm or loss is far outside of what was usual is clipped or held back; see [`Guard`].
    ///
    /// With accumulation it judges the sum, or the mean, of a window, and drops the whole window. A step held back ends the iteration as a
    /// skipped one: the learning rate of a [`ScaledLrScheduler`](crate::ScaledLrScheduler) stays too. Other optimizers on the same
    /// [`MixedPrecision`](crate::MixedPrecision) step as ever, and the scale learns from them alone. With clipping, which sees the gradients after the guard, the
    /// norms in the status are those before both.
    ///
    /// More than [`max_consecutive_skips`](crate::GradScalerConfig::max_consecutive_skips) steps held back in a row end the run.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range.
    pub fn with_guard(mut self, guard: Guard) -> Result<Self, AmpError> {
        self.options.guard = Some(StepGuard::new(guard)?);
        Ok(self)
    }

    /// Tells the guard the loss of the next call of [`step`](Self::step), as the program has read it. Without a guard it does nothing.
    ///
    /// The loss is computed outside of half precision, and this crate does not see it; reading the tensor here would be one wait more.
    /// Of an accumulation window the guard judges the mean of the losses that it was told. A step without a loss is judged by its
    /// norm alone, as all steps in a `Learner` are.
    ///
    /// ```
    /// # use burn::{module::Module, nn::LinearConfig, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
    /// # use burn_amp::{Guard, MixedPrecision, ScaledOptimizer};
    /// # let device = Device::flex().autodiff();
    /// # let amp = MixedPrecision::f16();
    /// # let mut model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
    /// let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp).with_guard(Guard::skip_step())?;
    /// let loss = amp.autocast(Tensor::<2>::ones([8, 4], &device), |x| model.forward(x)).square().mean();
    /// optim.set_loss(loss.clone().into_scalar::<f32>().into()); // read, as for a log
    /// let grads = GradientsParams::from_grads(loss.backward(), &model);
    /// model = optim.step(0.1, model, grads);
    /// # let _ = model;
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    pub fn set_loss(&mut self, loss: f64) {
        if let Some(guard) = &mut self.options.guard {
            guard.set_loss(loss);
        }
    }

    /// Averages the weights after every step that was not skipped; see [`Ema`].
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the momentum is not between 0 and 1, or the overwrite frequency 0.
    pub fn with_ema(mut self, config: EmaConfig) -> Result<Self, AmpError> {
        self.options.ema = Some(config.init()?);
        Ok(self)
    }

    /// Scales the loss and collects the gradients of `module`; see [`GradScaler::backward`].
    ///
    /// Gradients that were unscaled and dropped before this call count for the loss scale that is used.
    ///
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`].
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        let scale = self.scaler.settled_loss_factor();
        self.scaler.backward_at(scale, loss, module)
    }

    /// Unscales gradients ahead of [`step`](Self::step), to look at them or to clip them.
    ///
    /// Waits for the device once; `step` then does not wait again. See [`GradScaler::unscale`]. Gradients that are dropped after it count as
    /// discarded ones at the next call of this, of `step`, `flush` or `discard`.
    ///
    /// # Panics
    ///
    /// Where [`try_unscale`](Self::try_unscale) returns an error, with its message.
    pub fn unscale<M: Module>(&mut self, grads: ScaledGradients, module: &M) -> UnscaledGradients {
        self.try_unscale(grads, module)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`unscale`](Self::unscale), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// As [`GradScaler::try_unscale`], and as [`GradScaler::try_discard`] for gradients that were dropped before.
    pub fn try_unscale<M: Module>(
        &mut self,
        grads: ScaledGradients,
        module: &M,
    ) -> Result<UnscaledGradients, AmpError> {
        self.try_synchronize()?;
        self.scaler.settle_dropped()?;
        self.scaler.try_unscale(grads, module)
    }

    /// One training step, called as [`ModuleOptimizer::step`](burn::optim::ModuleOptimizer::step) is.
    ///
    /// `grads` are Burn's own, unscaled as they come from [`autocast`](crate::MixedPrecision::autocast), those of a loss that was
    /// scaled by hand ([`ScaledGradients`]), or [`UnscaledGradients`]. If they overflow, the step is skipped: parameters and
    /// optimizer state stay as they are, bit for bit, and the loss scale backs off. Running statistics (BatchNorm's) that the forward
    /// pass has made infinite or NaN are set back to those of the last good step; finite ones stay. Waits for the device once, to
    /// read whether the gradients are finite; on a skipped step once or twice more, if the module has running statistics.
    ///
    /// With a [fused optimizer](crate::Fused) it does not wait: the device itself skips the step and moves the loss scale, which the next
    /// scopes take from there. Scale, counters, outcome and status here are those of an earlier step then, of the
    /// one before or, if the device is behind, of one at most 17 before; so is an error. [`synchronize`](Self::synchronize) waits for them, and so do records. The results are
    /// the same, bit for bit. It waits as with other optimizers with accumulation, a guard, averages that overwrite the parameters or that have not
    /// begun, running statistics,
    /// gradients of several scopes or on several devices, `rescaled` parts whose factors move, a schedule that looks at gradients, scales and
    /// factors that are no powers of two, and other optimizers on the same scale; with clipping here and in the optimizer's own
    /// configuration, too.
    ///
    /// With [`with_accumulation`](Self::with_accumulation) it takes a micro-batch, and returns the module unchanged until the
    /// window is full; [`window`](Self::window) is empty after a step.
    ///
    /// # Panics
    ///
    /// Where [`try_step`](Self::try_step) returns an error, with its message.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> M {
        self.try_step(lr, module, grads)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`step`](Self::step), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// The error has the unchanged module. [`AmpError::LossScaleExhausted`] if the gradients overflow after `max_consecutive_skips`
    /// skips in a row, or where the scale cannot go lower if `raise_error_at_min_scale` is set, [`AmpError::HalfPrecisionParameter`] if a parameter is in half precision and the inner optimizer
    /// cannot combine it with an f32 gradient; see [`GradScaler::try_step`]. [`AmpError::UnsupportedDType`] if a gradient's
    /// device cannot compute in the gradient's dtype. [`AmpError::GradientShape`] if a gradient does not have its parameter's shape,
    /// [`AmpError::InvalidValue`] for a learning rate that is infinite or NaN. [`AmpError::ForeignRecord`] if an open window belongs
    /// to another model, or a state that was loaded to parameters of other shapes. [`AmpError::AlwaysGuarded`] if the guard holds
    /// back one step too many.
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> Result<M, StepError<M>> {
        let lr = lr.into();
        let grads = grads.into();
        match self.begin_unheard(&lr, &module, &grads) {
            Ok(None) => {}
            Ok(Some(start)) => {
                return Ok(self.step_unheard(start, lr, module, grads.into_params()));
            }
            Err(error) => return Err(self.scaler.failed(module, error)),
        }
        let steps = self.scaler.counters().steps();
        let decided = self.decide(&lr, &module, grads);
        self.finish(lr, module, decided, steps)
    }

    /// Steps with the micro-batches of a window that is not full, at the end of an epoch; see [`GradScaler::flush`].
    ///
    /// Returns the module unchanged if the window is empty, or there is no accumulation. Waits for the device once, if there
    /// is something to step with.
    ///
    /// # Panics
    ///
    /// Where [`try_flush`](Self::try_flush) returns an error, with its message.
    pub fn flush<M: Module>(&mut self, lr: impl Into<ModuleLearningRate>, module: M) -> M {
        self.try_flush(lr, module)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`flush`](Self::flush), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step), and [`AmpError::ForeignRecord`] if the window belongs to another model; it stays as it
    /// was then.
    pub fn try_flush<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
    ) -> Result<M, StepError<M>> {
        let lr = lr.into();
        self.settle_unheard();
        let steps = self.scaler.counters().steps();
        let decided = self.decide_flush(&lr, &module);
        self.finish(lr, module, decided, steps)
    }

    /// The gradients to step with; none if the step is skipped, or the window is not full.
    fn decide<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: StepGradients,
    ) -> Result<Option<Decided>, AmpError> {
        self.scaler.forget_last_call();
        self.check_loaded(module)?;
        (self.options).decide(&mut self.scaler, &self.optim, module, grads, Some(lr))
    }

    fn decide_flush<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        module: &M,
    ) -> Result<Option<Decided>, AmpError> {
        self.scaler.forget_last_call();
        self.check_loaded(module)?;
        (self.options).decide_flush(&mut self.scaler, &self.optim, module, lr)
    }

    /// Steps with what was decided, and shows it.
    fn finish<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        module: M,
        decided: Result<Option<Decided>, AmpError>,
        steps_before: u64,
    ) -> Result<M, StepError<M>> {
        let error = decided.as_ref().err().cloned();
        let module = match decided {
            Ok(Some(Decided { grads, factors })) => {
                let module = step_by(&mut self.optim, None, &factors, lr, module, grads);
                let masters = || self.optim.masters();
                Ok((self.options).applied(&mut self.scaler, module, masters))
            }
            Ok(None) => Ok(module),
            Err(error) => Err(self.scaler.failed(module, error)),
        };
        self.publish(steps_before);
        self.scaler.tell(error.as_ref());
        module
    }

    /// Compares a state that was loaded with the first module it meets.
    fn check_loaded<M: Module>(&mut self, module: &M) -> Result<(), AmpError> {
        if let Some(loaded) = &self.loaded {
            loaded.check(module)?;
            self.loaded = None;
        }
        Ok(())
    }

    /// Shows to those who ask the `MixedPrecision` what has changed: a step, or the scale inside a window.
    fn publish(&self, steps_before: u64) {
        #[cfg(feature = "train")]
        if let Some(amp) = self.scaler.precision() {
            let stepped = self.scaler.counters().steps() != steps_before;
            amp.publish(&self.scaler, stepped);
        }
        #[cfg(not(feature = "train"))]
        let _ = steps_before;
    }

    /// Throws away the micro-batches of a window that is not full. Does nothing without accumulation.
    pub fn drop_window(&mut self) {
        if let Some(window) = &mut self.options.window {
            window.clear();
        }
        if let Some(guard) = &mut self.options.guard {
            guard.drop_window();
        }
    }

    /// Throws gradients away without a step, in place of [`step`](Self::step), and counts that.
    ///
    /// Parameters, optimizer, averages and an open window stay as they are: a micro-batch that is discarded does not count.
    /// If the gradients were unscaled, they move the loss scale at once; see [`GradScaler::discard`]. Finite micro-batches do not
    /// if the scale stays the same for a whole window (without [`AccumulationConfig::skip_micro_batch`]).
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
    /// As [`GradScaler::try_discard`].
    pub fn try_discard(&mut self, grads: impl Into<StepGradients>) -> Result<(), AmpError> {
        self.try_synchronize()?;
        let discarded = self.options.discard(&mut self.scaler, grads.into());
        self.publish(self.scaler.counters().steps());
        discarded
    }

    /// As [`step`](Self::step), with gradients that several devices computed at the present loss scale.
    ///
    /// They are summed in f32 before they are unscaled, on the devices on which Burn's
    /// `ModuleOptimizer::step_multi` sums them; an overflow on one device skips the step.
    ///
    /// # Panics
    ///
    /// Where [`try_step_multi`](Self::try_step_multi) returns an error, with its message.
    pub fn step_multi<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: MultiGradientsParams,
    ) -> M {
        self.try_step_multi(lr, module, grads)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`step_multi`](Self::step_multi), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step).
    pub fn try_step_multi<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: MultiGradientsParams,
    ) -> Result<M, StepError<M>> {
        for (of_device, _) in &grads.grads {
            if let Err(error) = Entries::of(of_device, &module) {
                self.scaler.forget_last_call();
                return Err(self.scaler.failed(module, error));
            }
        }
        let grads = sum_of_devices(grads, &module);
        self.try_step(lr, module, grads)
    }

    /// The scaler: loss scale, counters, last outcome.
    pub fn scaler(&self) -> &GradScaler {
        &self.scaler
    }

    /// The scaler, to change its settings.
    pub fn scaler_mut(&mut self) -> &mut GradScaler {
        self.settle_unheard();
        &mut self.scaler
    }

    /// The window that accumulates micro-batches; none without [`with_accumulation`](Self::with_accumulation).
    pub fn window(&self) -> Option<&AccumulationWindow> {
        self.options.window.as_ref()
    }

    /// How the gradients of parameters that match no group are clipped; none without [`with_clipping`](Self::with_clipping).
    pub fn clipping(&self) -> Option<&GradientClip> {
        self.options.clip.all.as_ref()
    }

    /// The guard; none without [`with_guard`](Self::with_guard).
    pub fn guard(&self) -> Option<&Guard> {
        self.options.guard.as_ref().map(StepGuard::guard)
    }

    /// The average of the weights; none without [`with_ema`](Self::with_ema).
    pub fn ema(&self) -> Option<&Ema> {
        self.options.ema.as_ref()
    }

    /// Ends the training: replaces the parameters by their averages, in the parameters' dtypes, as Keras's
    /// `finalize_variable_values`; see [`Ema::finalize`]. Returns the module unchanged without [`with_ema`](Self::with_ema).
    /// Does not wait for the device.
    pub fn finalize<M: Module>(&self, module: M) -> M {
        match &self.options.ema {
            Some(ema) => ema.finalize(module),
            None => module,
        }
    }

    /// The inner optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optim
    }

    /// The inner optimizer, to change its settings.
    pub fn optimizer_mut(&mut self) -> &mut O {
        self.settle_unheard();
        &mut self.optim
    }

    /// The inner optimizer with its state, to use without scaling. An open window and averages are dropped.
    pub fn into_inner(mut self) -> O {
        self.settle_unheard();
        self.optim
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// The state of optimizer and scaler, of an open window, of a guard and of averages, to be stored. Waits for the device.
    ///
    /// A state that cannot be stored is an error of the record's `save`, `into_bytes` and `into_optimizer`.
    pub fn to_record(&self) -> AmpRecord {
        let window = (self.options.window.as_ref()).filter(|window| !window.is_empty());
        let ema = self.options.ema.as_ref().filter(|ema| ema.updates() > 0);
        // Before the optimizer: what it has counted is right then.
        let settled = self.settled_scaler();
        let (scaler, taken) = match &settled {
            Some((scaler, taken)) => (scaler, *taken),
            None => (&self.scaler, 0),
        };
        let mut record = scaler.to_record().with_optimizer(&self.optim);
        record.window = window.map(AccumulationWindow::state_to_store);
        record.averages = ema.map(Ema::state_to_store);
        if let Some(averages) = &mut record.averages {
            averages.updates += taken;
        }
        record.guard = self.options.guard.clone();
        record
    }

    /// Takes over a stored state, which replaces all of the present one. An open window is dropped. With the record of a plain
    /// optimizer the scaler starts fresh. With a record that has no averages they start again, and so does a guard with the record
    /// of none, or of another one. The log warns of it.
    ///
    /// The settings stay as they are here: see [`GradScaler::load_record`].
    ///
    /// # Panics
    ///
    /// Where [`try_load_record`](Self::try_load_record) returns an error, with its message.
    pub fn load_record(&mut self, record: AmpRecord) {
        self.try_load_record(record)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`load_record`](Self::load_record), for programs that want to handle a failure.
    ///
    /// Unlike Burn's `load_record`, which silently starts again, it refuses the state of another optimizer. Burn builds the tensors on
    /// `Device::default()`, the first GPU backend that was *compiled in*: the environment variable `BURN_DEVICE` names another.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`], also for an open window or averages where there is no accumulation or averaging; optimizer,
    /// scaler, window and averages stay as they were.
    pub fn try_load_record(&mut self, mut record: AmpRecord) -> Result<(), AmpError> {
        self.settle_unheard();
        let state = record.optimizer_state()?;
        if let Some(reason) = self.misfit(&record) {
            return Err(record.misfit(reason));
        }
        let (scaler, window) = (record.scaler.take(), record.window.take());
        let (averages, guard) = (record.averages.take(), record.guard.take());
        let origin = record.origin().to_string();
        let loaded = self.optim.try_load_record(record.into_optimizer()?);
        loaded.map_err(|error| match error {
            AmpError::ForeignRecord { reason, .. } => AmpError::ForeignRecord {
                origin: origin.clone(),
                reason,
            },
            other => other,
        })?;
        self.loaded = Some(state);
        self.unread.forget();
        if let Some(here) = &mut self.options.window {
            match window {
                Some(state) => here.restore(state),
                None => here.clear(),
            }
        }
        if let Some(here) = &mut self.options.ema {
            let steps = (scaler.as_ref()).map_or(0, |scaler| scaler.counters.stepped());
            match averages {
                Some(state) => here.restore(state),
                None => {
                    if here.updates() > 0 || steps > 0 {
                        log::warn!(
                            "{origin} holds no averages of the weights: they start again, after {steps} steps"
                        );
                    }
                    here.reset();
                }
            }
        }
        self.options.restore_guard(guard, &origin);
        match scaler {
            Some(state) => self.scaler.restore(state, &origin),
            None => {
                self.scaler.reset();
                log::warn!(
                    "{origin} is the record of an optimizer without loss scaling: the scaler starts fresh, at loss scale {}",
                    self.scaler.loss_scale()
                );
                self.publish(0);
            }
        }
        Ok(())
    }

    /// Why this cannot go on with a window or with averages, if it cannot.
    fn misfit(&self, record: &AmpRecord) -> Option<String> {
        if record.masters() > 0 {
            let reason = "it holds master weights that the model does not have: load it into a `PipelinedOptimizer`, or drop them with \
                          `AmpRecord::without_masters`";
            return Some(reason.to_string());
        }
        if let Some(state) = record.window.as_ref().filter(|state| state.len > 0) {
            let Some(window) = &self.options.window else {
                return Some(format!(
                    "it holds a window of {} accumulated micro-batches, but there is no accumulation here: use \
                     `with_accumulation`, or drop them with `AmpRecord::without_window`",
                    state.len
                ));
            };
            if let Some(reason) = window.misfit(state) {
                return Some(format!(
                    "{reason}; drop it with `AmpRecord::without_window`"
                ));
            }
        }
        if record.averages.is_some() && self.options.ema.is_none() {
            let reason = "it holds averages of the weights, but none are kept here: use `with_ema`, or drop them with \
                          `AmpRecord::without_averages`";
            return Some(reason.to_string());
        }
        None
    }

    /// Writes the state to a file: `to_record().save(path)`.
    ///
    /// # Errors
    ///
    /// As [`AmpRecord::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.to_record().save(path)
    }

    /// Takes over the state in a file: [`AmpRecord::load`], then [`try_load_record`](Self::try_load_record).
    ///
    /// # Errors
    ///
    /// Those of both; the present state stays as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.try_load_record(AmpRecord::load(path)?)
    }

    /// The state as a burnpack in memory: `to_record().into_bytes()`.
    ///
    /// # Errors
    ///
    /// As [`AmpRecord::into_bytes`].
    pub fn into_bytes(&self) -> Result<Bytes, AmpError> {
        self.to_record().into_bytes()
    }

    /// Takes over the state in a burnpack in memory: [`AmpRecord::from_bytes`], then
    /// [`try_load_record`](Self::try_load_record).
    ///
    /// # Errors
    ///
    /// Those of both; the present state stays as it was.
    pub fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        self.try_load_record(AmpRecord::from_bytes(bytes)?)
    }
}

/// Without the inner optimizer: Burn's own does not print.
impl<O> std::fmt::Debug for ScaledOptimizer<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaledOptimizer")
            .field("scaler", &self.scaler)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

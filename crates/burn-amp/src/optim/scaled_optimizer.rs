use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    optim::{ModuleOptimizer, MultiGradientsParams},
    tensor::Tensor,
};

use super::{loaded::LoadedState, step_options::StepOptions};
use crate::{
    ema::{Ema, EmaConfig},
    error::AmpError,
    gradients::{
        AccumulationConfig, AccumulationWindow, GradientClip, ScaledGradients, StepGradients,
        UnscaledGradients, check_shapes, sum_of_devices,
    },
    scaler::{GradScaler, ModuleOptim},
};

/// An optimizer with loss scaling: [`step`](Self::step) unscales the gradients, tests them, steps the inner
/// optimizer or skips the step, and moves the loss scale.
///
/// Wraps anything that implements [`ModuleOptim`]: Burn's `ModuleOptimizer`, hence every optimizer with
/// its groups and its clipping (which sees unscaled gradients), a `&mut` to one, or a type of one's own. The
/// counterpart of Keras's `LossScaleOptimizer`.
///
/// [`with_accumulation`](Self::with_accumulation), [`with_clipping`](Self::with_clipping) and [`with_ema`](Self::with_ema)
/// add what stands around a step, which then does, in this order: accumulate, unscale, test, clip, step or skip, average the
/// weights, update the scale.
#[derive(Clone)]
pub struct ScaledOptimizer<O = ModuleOptimizer> {
    optim: O,
    scaler: GradScaler,
    pub(crate) options: StepOptions,
    /// A loaded state that no step was taken with.
    pub(super) loaded: Option<LoadedState>,
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Puts the loss scale of a [`MixedPrecision`](crate::MixedPrecision) before `optim`, or a [`GradScaler`] for half-precision
    /// parameters.
    pub fn new(optim: O, scaler: impl Into<GradScaler>) -> Self {
        let scaler = scaler.into();
        Self {
            optim,
            scaler,
            options: StepOptions::default(),
            loaded: None,
        }
    }

    /// Makes `step` take micro-batches: every n-th call steps, with their mean or their sum.
    ///
    /// Takes a number of micro-batches or an [`AccumulationConfig`]. A window that was open is dropped.
    ///
    /// ```
    /// use burn::optim::SgdConfig;
    /// use burn_amp::{AccumulationConfig, GradScalerConfig, OverflowRule, ScaledOptimizer};
    ///
    /// let optim = ScaledOptimizer::new(SgdConfig::new().init(), GradScalerConfig::new().init()?);
    /// let optim = optim.with_accumulation(4)?;
    /// let optim = optim.with_accumulation(AccumulationConfig::new(4).with_overflow(OverflowRule::SkipMicroBatch))?;
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
    /// Clipping that is configured on the inner optimizer comes after it.
    pub fn with_clipping(mut self, clip: GradientClip) -> Self {
        self.options.clip = Some(clip);
        self
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
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`].
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        self.scaler.backward(loss, module)
    }

    /// Unscales gradients ahead of [`step`](Self::step), to look at them or to clip them.
    ///
    /// Waits for the device once, and `step` no more; see [`GradScaler::unscale`].
    ///
    /// # Panics
    ///
    /// As [`GradScaler::unscale`], which has a twin that returns an error.
    pub fn unscale<M: Module>(&self, grads: ScaledGradients, module: &M) -> UnscaledGradients {
        self.scaler.unscale(grads, module)
    }

    /// One training step, called as [`ModuleOptimizer::step`](burn::optim::ModuleOptimizer::step) is.
    ///
    /// `grads` are Burn's own, unscaled as they come from [`autocast`](crate::MixedPrecision::autocast), those of a loss that was
    /// scaled by hand ([`ScaledGradients`]), or [`UnscaledGradients`]. If they overflow, the step is skipped: parameters and
    /// optimizer state stay as they are, bit for bit, and the loss scale backs off. Waits for the device once, to
    /// read the verdict on scaled gradients.
    ///
    /// With [`with_accumulation`](Self::with_accumulation) it takes a micro-batch, and returns the module as it came until the
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
    /// The module is dropped on an error: keep a clone, which is cheap, to save it then.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] if the gradients overflow and the loss scale cannot be lowered any more, or after too
    /// many skips in a row, [`AmpError::HalfPrecisionParameter`] if a parameter is in half precision and the inner optimizer
    /// cannot combine it with an f32 gradient; see [`GradScaler::try_step`]. [`AmpError::UnsupportedDType`] if a gradient's
    /// device cannot compute in the gradient's dtype. [`AmpError::GradientShape`] if a gradient has not its parameter's shape,
    /// [`AmpError::InvalidValue`] for a learning rate that is infinite or NaN. [`AmpError::ForeignRecord`] if an open window belongs
    /// to another model, or a state that was loaded to parameters of other shapes.
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> Result<M, AmpError> {
        self.check_loaded(&module)?;
        let steps = self.scaler.counters().steps();
        let (scaler, optim) = (&mut self.scaler, &mut self.optim);
        let module = (self.options).try_step(scaler, optim, lr.into(), module, grads.into());
        self.publish(steps);
        module
    }

    /// Steps with the micro-batches of a window that is not full, at the end of an epoch; see [`GradScaler::flush`].
    ///
    /// Returns the module as it came if the window is empty, or there is no accumulation. Waits for the device once, if there
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
    ) -> Result<M, AmpError> {
        self.check_loaded(&module)?;
        let steps = self.scaler.counters().steps();
        let (scaler, optim) = (&mut self.scaler, &mut self.optim);
        let module = self.options.try_flush(scaler, optim, lr.into(), module);
        self.publish(steps);
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

    /// Shows the monitor what has changed: a step, or the scale inside a window.
    fn publish(&self, steps_before: u64) {
        #[cfg(feature = "train")]
        if let Some(amp) = self.scaler.precision() {
            let stepped = self.scaler.counters().steps() != steps_before;
            amp.monitor().publish(&self.scaler, stepped);
        }
        #[cfg(not(feature = "train"))]
        let _ = steps_before;
    }

    /// Throws away the micro-batches of a window that is not full. Does nothing without accumulation.
    pub fn drop_window(&mut self) {
        if let Some(window) = &mut self.options.window {
            window.clear();
        }
    }

    /// Throws gradients away without a step, in place of [`step`](Self::step), and counts that.
    ///
    /// Parameters, optimizer, averages and an open window stay as they are: a micro-batch that is discarded does not count.
    /// What was unscaled moves the loss scale, as [`GradScaler::discard`] has it, except where the scale is frozen for
    /// a window ([`OverflowRule::SkipWindow`](crate::OverflowRule)).
    pub fn discard(&mut self, grads: impl Into<StepGradients>) {
        self.options.discard(&mut self.scaler, grads.into());
        self.publish(self.scaler.counters().steps());
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
    ) -> Result<M, AmpError> {
        for (of_device, _) in &grads.grads {
            check_shapes(of_device, &module)?;
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
        &mut self.scaler
    }

    /// The window that accumulates micro-batches; none without [`with_accumulation`](Self::with_accumulation).
    pub fn window(&self) -> Option<&AccumulationWindow> {
        self.options.window.as_ref()
    }

    /// How gradients are clipped; none without [`with_clipping`](Self::with_clipping).
    pub fn clipping(&self) -> Option<&GradientClip> {
        self.options.clip.as_ref()
    }

    /// The average of the weights; none without [`with_ema`](Self::with_ema).
    pub fn ema(&self) -> Option<&Ema> {
        self.options.ema.as_ref()
    }

    /// Ends the training: replaces the parameters by their averages, in the parameters' dtypes, as Keras's
    /// `finalize_variable_values`; see [`Ema::finalize`]. Returns the module as it came without [`with_ema`](Self::with_ema).
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
        &mut self.optim
    }

    /// The inner optimizer, its state intact, to go on without scaling. An open window and averages are dropped.
    pub fn into_inner(self) -> O {
        self.optim
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

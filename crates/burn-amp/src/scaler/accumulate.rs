//! Micro-batches: the scaler's side of an [`AccumulationWindow`].

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{DType, Tensor},
};

use super::GradScaler;
use crate::{
    error::AmpError,
    gradients::{
        AccumulationWindow, ScaledGradients, StepGradients, UnscaledGradients, check_shape,
        optimizer_dtype, pass_through, unscale,
    },
    live_scale::Blame,
    loss_scale::StepOutcome,
    module_optim::ModuleOptim,
    module_path::ModulePath,
};

impl GradScaler {
    /// Adds the gradients of a micro-batch to a window; when that makes it full, empties it and returns the gradients to
    /// step with, unscaled.
    ///
    /// Takes Burn's own gradients, which are unscaled, [`ScaledGradients`](crate::ScaledGradients) or [`UnscaledGradients`]; gradients of parameters that are not in `module` are dropped. With
    /// [`OverflowRule::SkipWindow`](crate::OverflowRule) the sum has the scaler's loss scale at the window's first
    /// micro-batch, whatever scale the micro-batches carry; only the last of them waits for the device, once. With
    /// [`OverflowRule::SkipMicroBatch`](crate::OverflowRule) each call with scaled gradients waits once, and the one that fills
    /// the window once more, for the finished sum; the loss scale moves at once, so that an [`update`](Self::update) after the
    /// step changes nothing. A micro-batch that overflows is dropped, counted in
    /// [`StepCounters::dropped`](crate::StepCounters::dropped) and logged. Disabled: nothing is tested, and no call waits.
    ///
    /// A micro-batch without gradients counts: a mean divides by it too, as that of one large batch would. (Keras ignores such
    /// a call.)
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] if a micro-batch is dropped where the scale cannot be lowered or after
    /// `max_consecutive_skips` dropped in a row; the window stays as it was. [`AmpError::ForeignRecord`] if a sum of the window is of
    /// no parameter of `module`, not of its shape, or not in the dtype in which its gradients are summed;
    /// [`AmpError::GradientShape`] if a gradient has not its parameter's shape;
    /// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype. Nothing was changed then.
    pub fn accumulate<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        grads: impl Into<StepGradients>,
        module: &M,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        let grads = grads.into();
        window.check(Some(grads.params()), module)?;
        if window.drops_micro_batches() {
            let grads = match grads {
                StepGradients::Plain(grads) => self.test(grads, module)?,
                StepGradients::Scaled(grads) => self.unscale_wide(grads, module)?,
                StepGradients::Unscaled(grads) => grads,
            };
            if self.settle(&grads)?.is_skipped() {
                return Ok(None);
            }
            window.add(grads.into_tested(), module, 1.0);
        } else {
            let (params, scale) = match grads {
                StepGradients::Plain(grads) => (grads, 1.0),
                StepGradients::Scaled(grads) => {
                    let scale = grads.loss_scale();
                    (grads.into_params(), scale)
                }
                StepGradients::Unscaled(grads) => (grads.into_tested(), 1.0),
            };
            let common = window.scale_or(self.loss_factor());
            window.add(params, module, f64::from(common) / f64::from(scale));
        }
        match window.is_full() {
            true => self.flush(window, module),
            false => Ok(None),
        }
    }

    /// Empties a window before it is full, at the end of an epoch, and returns the gradients to step with, unscaled; none
    /// if it is empty. A mean is that of the micro-batches that are in it.
    ///
    /// Gradients are f32, or f64 for f64 parameters, unless [`parameter_dtype_gradients`](crate::GradScalerConfig::parameter_dtype_gradients) is set. Waits for the device
    /// once; a disabled scaler tests nothing and does not wait.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if a sum is of no parameter of `module`, not of its shape, or not in the dtype in which its
    /// gradients are summed: the window belongs to another model, and stays as it was. [`AmpError::UnsupportedDType`] if the
    /// device cannot compute in a sum's dtype.
    pub fn flush<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        module: &M,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        if window.is_empty() {
            return Ok(None);
        }
        window.check(None, module)?;
        let settled = window.drops_micro_batches();
        let (sums, divisor) = window.take(module);
        let grads = if self.is_enabled() {
            unscale(
                sums,
                module,
                divisor,
                self.config().parameter_dtype_gradients,
            )?
        } else {
            let sums = pass_through(sums, module)?;
            match divisor {
                1.0 => sums.narrowed(),
                divisor => sums.mul_scalar(1.0 / divisor).narrowed(),
            }
        };
        Ok(Some(match settled {
            true => grads.settled(),
            false => self.blamed(grads),
        }))
    }

    /// As `unscale`, but not yet rounded to a half-precision dtype: that comes after the sum.
    fn unscale_wide<M: Module>(
        &self,
        grads: ScaledGradients,
        module: &M,
    ) -> Result<UnscaledGradients, AmpError> {
        if !self.is_enabled() {
            return pass_through(grads.into_params(), module);
        }
        let scale = f64::from(grads.loss_scale());
        let unscaled = unscale(grads.into_params(), module, scale, false)?;
        Ok(self.blamed(unscaled))
    }

    /// Lets the loss scale learn from one micro-batch: the test of a step, and its update.
    fn settle(&mut self, grads: &UnscaledGradients) -> Result<StepOutcome, AmpError> {
        self.underflow_check(grads);
        self.remember(grads);
        let outcome = if grads.has_overflow() {
            self.counters.record_dropped();
            self.suspect_statistics();
            if let Blame::Loss { output_finite } = grads.blame() {
                self.forget_losses();
                return match self.skip_bad_loss(output_finite, "micro-batch dropped") {
                    Some(error) => Err(error),
                    None => Ok(StepOutcome::Skipped),
                };
            }
            self.counters.add_consecutive_skip();
            if let Some(error) = self.exhausted(grads) {
                self.forget_losses();
                return Err(error);
            }
            StepOutcome::Skipped
        } else {
            self.counters.reset_consecutive_skips();
            self.counters.reset_bad_losses();
            StepOutcome::Stepped
        };
        if !grads.entries().is_empty() {
            self.adjust(outcome, "micro-batch dropped");
        }
        self.forget_losses();
        Ok(outcome)
    }

    /// Refuses, before a micro-batch enters a window, what the step at its end would refuse.
    pub(crate) fn check_window<O: ModuleOptim, M: Module>(
        &self,
        optim: &O,
        grads: &StepGradients,
        module: &M,
    ) -> Result<(), AmpError> {
        if !self.is_enabled() {
            return Ok(());
        }
        let grads = grads.params();
        let mut check = Accepts {
            optim,
            grads,
            in_own_dtype: self.config().parameter_dtype_gradients,
            path: ModulePath::default(),
            refused: None,
        };
        module.visit(&mut check);
        check.refused.map_or(Ok(()), Err)
    }
}

struct Accepts<'a, O> {
    optim: &'a O,
    grads: &'a GradientsParams,
    in_own_dtype: bool,
    path: ModulePath,
    refused: Option<AmpError>,
}

impl<O: ModuleOptim> ModuleVisitor for Accepts<'_, O> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        match check_shape(self.grads, param, &self.path) {
            _ if self.refused.is_some() => return,
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                self.refused = Some(error);
                return;
            }
        }
        let parameter = param.base().dtype();
        let gradient = DType::from(optimizer_dtype(parameter, self.in_own_dtype));
        if !self.optim.accepts(parameter, gradient) {
            self.refused = Some(AmpError::HalfPrecisionParameter {
                parameter: self.path.join(),
                parameter_dtype: parameter,
                gradient_dtype: gradient,
            });
        }
    }
}

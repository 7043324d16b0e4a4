use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module,
    optim::MultiGradientsParams, tensor::Tensor,
};

use super::StepGradients;
use crate::{
    error::AmpError,
    gradients::{ScaledGradients, UnscaledGradients},
    scaler::{GradScaler, ModuleOptim, ScaleLoss, ScalerMonitor},
};

/// An optimizer with loss scaling: [`step`](Self::step) unscales the gradients, tests them, steps the inner
/// optimizer or skips the step, and moves the loss scale.
///
/// Wraps anything that implements [`ModuleOptim`]: Burn's `ModuleOptimizer`, hence every optimizer with
/// its groups and its clipping (which sees unscaled gradients), a `&mut` to one, or a type of one's own. The
/// counterpart of Keras's `LossScaleOptimizer`.
#[derive(Clone, Debug)]
pub struct ScaledOptimizer<O> {
    optim: O,
    scaler: GradScaler,
    monitor: ScalerMonitor,
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Puts `scaler` before `optim`.
    pub fn new(optim: O, scaler: GradScaler) -> Self {
        let monitor = ScalerMonitor::new(&scaler);
        Self {
            optim,
            scaler,
            monitor,
        }
    }

    /// Multiplies a loss, or a structure of losses, by the loss scale; see [`GradScaler::scale`].
    pub fn scale<L: ScaleLoss>(&self, loss: L) -> L {
        self.scaler.scale(loss)
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
    pub fn unscale<M: Module>(
        &self,
        grads: impl Into<ScaledGradients>,
        module: &M,
    ) -> UnscaledGradients {
        self.scaler.unscale(grads, module)
    }

    /// One training step, called as [`ModuleOptimizer::step`](burn::optim::ModuleOptimizer::step) is.
    ///
    /// `grads` are those of a loss that went through [`scale`](Self::scale) (a plain `GradientsParams`, or
    /// [`ScaledGradients`]), or [`UnscaledGradients`]. If they overflow, the step is skipped: parameters and
    /// optimizer state stay as they are, bit for bit, and the loss scale backs off. Waits for the device once, to
    /// read the verdict on scaled gradients.
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
    /// [`AmpError::LossScaleExhausted`] if the gradients overflow and the loss scale cannot be lowered any more,
    /// [`AmpError::HalfPrecisionParameter`] if a parameter is in half precision and the inner optimizer cannot
    /// combine it with an f32 gradient; see [`GradScaler::try_step`].
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> Result<M, AmpError> {
        let grads = match grads.into() {
            StepGradients::Scaled(grads) => self.scaler.unscale(grads, &module),
            StepGradients::Unscaled(grads) => grads,
        };
        let module = self.scaler.try_step(&mut self.optim, lr, module, grads);
        if module.is_ok() {
            self.scaler.update();
        }
        self.monitor.publish_step(&self.scaler);
        module
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
        let grads = ScaledGradients::from_multi(grads, &module);
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

    /// A view of the scaler for metrics and other threads: what every step was like, as soon as it is done.
    ///
    /// Changes made by [`scaler_mut`](Self::scaler_mut) or by loading a record show with the next step, or the next
    /// call of this. Clones of this optimizer share the monitor.
    pub fn monitor(&self) -> ScalerMonitor {
        self.monitor.publish(&self.scaler);
        self.monitor.clone()
    }

    /// The inner optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optim
    }

    /// The inner optimizer, to change its settings.
    pub fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optim
    }

    /// The inner optimizer, its state intact, to go on without scaling.
    pub fn into_inner(self) -> O {
        self.optim
    }
}

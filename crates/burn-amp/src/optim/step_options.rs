use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module};

use crate::{
    ema::Ema,
    error::AmpError,
    gradients::{AccumulationWindow, GradientClip, StepGradients, UnscaledGradients},
    scaler::{GradScaler, ModuleOptim},
};

/// What stands around a step, and the order in which it is done: accumulate, unscale, test, clip, step or skip, average
/// the weights, update the scale.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOptions {
    pub(crate) window: Option<AccumulationWindow>,
    pub(crate) clip: Option<GradientClip>,
    pub(crate) ema: Option<Ema>,
}

impl StepOptions {
    /// One step, or one micro-batch of a window.
    pub(crate) fn try_step<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &mut O,
        lr: ModuleLearningRate,
        module: M,
        grads: StepGradients,
    ) -> Result<M, AmpError> {
        scaler.check_scopes();
        let grads = match &mut self.window {
            Some(window) => {
                scaler.check_window(optim, &grads, &module)?;
                match scaler.accumulate(window, grads, &module)? {
                    Some(grads) => grads,
                    None => return Ok(module),
                }
            }
            None => match grads {
                StepGradients::Plain(grads) => scaler.test(grads, &module)?,
                StepGradients::Scaled(grads) => scaler.try_unscale(grads, &module)?,
                StepGradients::Unscaled(grads) => grads,
            },
        };
        self.finish(scaler, optim, lr, module, grads)
    }

    /// Steps with the micro-batches of a window that is not full.
    pub(crate) fn try_flush<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &mut O,
        lr: ModuleLearningRate,
        module: M,
    ) -> Result<M, AmpError> {
        let grads = match &mut self.window {
            Some(window) => scaler.flush(window, &module)?,
            None => None,
        };
        match grads {
            Some(grads) => self.finish(scaler, optim, lr, module, grads),
            None => Ok(module),
        }
    }

    fn finish<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &mut O,
        lr: ModuleLearningRate,
        module: M,
        grads: UnscaledGradients,
    ) -> Result<M, AmpError> {
        let grads = match &self.clip {
            Some(clip) => grads.try_clip(clip)?,
            None => grads,
        };
        let applied = !grads.has_overflow();
        let module = scaler.try_step(optim, lr, module, grads)?;
        let module = match &mut self.ema {
            Some(ema) if applied => ema.update(module),
            _ => module,
        };
        scaler.update();
        Ok(module)
    }

    /// Throws gradients away; the scale stays frozen inside a window that is skipped as a whole.
    pub(crate) fn discard(&self, scaler: &mut GradScaler, grads: StepGradients) {
        let frozen = |window: &AccumulationWindow| !window.drops_micro_batches();
        match grads {
            StepGradients::Unscaled(grads) if self.window.as_ref().is_some_and(frozen) => {
                scaler.discard(grads.into_params());
            }
            grads => {
                scaler.discard(grads);
                scaler.update();
            }
        }
    }
}

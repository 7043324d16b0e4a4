use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};

use crate::{
    ema::Ema,
    error::AmpError,
    gradients::{AccumulationWindow, GradientClip, StepGradients, UnscaledGradients, check_shapes},
    learning_rate::check_learning_rate,
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
        // Refused before a window takes the gradients.
        check_learning_rate(&lr, &module)?;
        Ok(match self.decide(scaler, optim, &module, grads)? {
            Some(grads) => self.applied(scaler, optim.step(lr, module, grads)),
            None => module,
        })
    }

    /// Steps with the micro-batches of a window that is not full.
    pub(crate) fn try_flush<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &mut O,
        lr: ModuleLearningRate,
        module: M,
    ) -> Result<M, AmpError> {
        check_learning_rate(&lr, &module)?;
        let grads = match &mut self.window {
            Some(window) => scaler.flush(window, &module)?,
            None => None,
        };
        let Some(grads) = grads else {
            return Ok(module);
        };
        let before = scaler.before_step(&module);
        let decided = self.settle(scaler, optim, grads);
        scaler.after_step(&module, before, matches!(decided, Ok(Some(_))));
        Ok(match decided? {
            Some(grads) => self.applied(scaler, optim.step(lr, module, grads)),
            None => module,
        })
    }

    /// What comes before the step itself. The gradients to step with; none if the step is skipped, and done with, or the
    /// window is not full.
    pub(crate) fn decide<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        grads: StepGradients,
    ) -> Result<Option<GradientsParams>, AmpError> {
        let before = scaler.before_step(module);
        let decided = self.tested(scaler, optim, module, grads);
        let clean = match &decided {
            Ok(Some(_)) => true,
            Ok(None) => (self.window.as_ref()).is_some_and(AccumulationWindow::drops_micro_batches),
            Err(_) => false,
        };
        scaler.after_step(module, before, clean);
        decided
    }

    fn tested<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        grads: StepGradients,
    ) -> Result<Option<GradientsParams>, AmpError> {
        scaler.check_scopes();
        let grads = match &mut self.window {
            Some(window) => {
                scaler.check_window(optim, &grads, module)?;
                match scaler.accumulate(window, grads, module)? {
                    Some(grads) => grads,
                    None => return Ok(None),
                }
            }
            None => match grads {
                StepGradients::Plain(grads) => scaler.test(grads, module)?,
                StepGradients::Scaled(grads) => scaler.try_unscale(grads, module)?,
                StepGradients::Unscaled(grads) => {
                    // They may have been changed since they were tested.
                    check_shapes(grads.params(), module)?;
                    grads
                }
            },
        };
        self.settle(scaler, optim, grads)
    }

    fn settle<O: ModuleOptim>(
        &self,
        scaler: &mut GradScaler,
        optim: &O,
        grads: UnscaledGradients,
    ) -> Result<Option<GradientsParams>, AmpError> {
        let grads = match &self.clip {
            Some(clip) => grads.try_clip(clip)?,
            None => grads,
        };
        let grads = scaler.decide(optim, grads)?;
        if grads.is_none() {
            scaler.update();
        }
        Ok(grads)
    }

    /// What comes after a step that was not skipped.
    pub(crate) fn applied<M: Module>(&mut self, scaler: &mut GradScaler, module: M) -> M {
        let module = match &mut self.ema {
            Some(ema) => ema.update(module),
            None => module,
        };
        scaler.update();
        module
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

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};

use crate::{
    accumulation::AccumulationWindow,
    clip::ClipRules,
    ema::Ema,
    entries::Traversal,
    error::AmpError,
    gradients::{StepGradients, UnscaledGradients},
    scaler::{GradScaler, ModuleOptim},
};

/// What stands around a step, and the order in which it is done: accumulate, unscale, test, clip, step or skip, average
/// the weights, update the scale.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOptions {
    pub(crate) window: Option<AccumulationWindow>,
    pub(crate) clip: ClipRules,
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
        Ok(
            match self.decide(scaler, optim, &module, grads, Some(&lr))? {
                Some(grads) => self.applied(scaler, optim.step(lr, module, grads)),
                None => module,
            },
        )
    }

    /// Steps with the micro-batches of a window that is not full.
    pub(crate) fn try_flush<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &mut O,
        lr: ModuleLearningRate,
        module: M,
    ) -> Result<M, AmpError> {
        let traversal = Traversal {
            sums: self.window.as_ref().map(|window| &window.sums),
            lr: Some(&lr),
            ..Default::default()
        };
        let entries = traversal.of(&module)?;
        let grads = match &mut self.window {
            Some(window) if !window.is_empty() => Some(scaler.empty(window, entries.into_sums())?),
            _ => None,
        };
        let grads = match grads {
            Some(grads) => self.settle(scaler, optim, grads)?,
            None => None,
        };
        Ok(match grads {
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
        lr: Option<&ModuleLearningRate>,
    ) -> Result<Option<GradientsParams>, AmpError> {
        // All that is to be refused is refused before a window takes the gradients.
        let traversal = Traversal {
            grads: Some(grads.params()),
            sums: self.window.as_ref().map(|window| &window.sums),
            lr,
        };
        let entries = traversal.of(module)?;
        scaler.check_scopes();
        let grads = match (&mut self.window, grads) {
            (Some(window), grads) => {
                scaler.check_accepted(optim, &entries)?;
                match scaler.add_micro_batch(window, grads, entries)? {
                    Some(grads) => grads,
                    None => return Ok(None),
                }
            }
            (None, StepGradients::Plain(grads)) => scaler.test(grads, &entries)?,
            (None, StepGradients::Scaled(grads)) => {
                let (scale, dtype) = (grads.loss_scale(), scaler.gradient_dtype());
                let entries = entries.into_gradients();
                scaler.unscale_by(grads.into_params(), entries, scale, dtype)?
            }
            (None, StepGradients::Unscaled(grads)) => grads,
        };
        self.settle(scaler, optim, grads)
    }

    fn settle<O: ModuleOptim>(
        &self,
        scaler: &mut GradScaler,
        optim: &O,
        grads: UnscaledGradients,
    ) -> Result<Option<GradientsParams>, AmpError> {
        let grads = match self.clip.is_empty() {
            true => grads,
            false => grads.clip_by(&self.clip)?,
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

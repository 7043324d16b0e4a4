//! The order of a step: accumulate, unscale, test, clip, step or skip, average the weights, update the scale.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};

use crate::{
    accumulation::AccumulationWindow,
    clip::ClipRules,
    ema::Ema,
    entries::{Entries, Traversal},
    error::AmpError,
    gradients::{StepGradients, UnscaledGradients},
    loss_scale::StepOutcome,
    module_optim::ModuleOptim,
    param_tensors::ParamTensors,
    scaler::GradScaler,
};

/// What a [`ScaledOptimizer`](crate::ScaledOptimizer) adds to a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOptions {
    pub(crate) window: Option<AccumulationWindow>,
    pub(crate) clip: ClipRules,
    pub(crate) ema: Option<Ema>,
}

impl StepOptions {
    /// The gradients of a window that is not full, to step with; none if the window is empty, or the step is skipped.
    pub(crate) fn decide_flush<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        lr: &ModuleLearningRate,
    ) -> Result<Option<GradientsParams>, AmpError> {
        scaler.settle_dropped()?;
        let traversal = Traversal {
            sums: self.window.as_ref().map(|window| &window.sums),
            lr: Some(lr),
            ..Default::default()
        };
        let mut entries = traversal.of(module)?;
        let statistics = entries.take_statistics();
        let grads = match &mut self.window {
            Some(window) if !window.is_empty() => Some(scaler.empty(window, entries.into_sums())?),
            _ => None,
        };
        let Some(grads) = grads else {
            scaler.set_outcome(StepOutcome::NoGradients);
            scaler.log_call();
            return Ok(None);
        };
        let has_statistics = scaler.meet_statistics(statistics);
        let decided = self.settle(scaler, optim, grads);
        scaler.end_call(module, has_statistics, false);
        decided
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
        if let StepGradients::Unscaled(grads) = &grads {
            scaler.take_verdict(grads);
        }
        scaler.forget_last_call();
        scaler.settle_dropped()?;
        // All that is to be refused is refused before a window takes the gradients.
        let traversal = Traversal {
            grads: Some(grads.params()),
            sums: self.window.as_ref().map(|window| &window.sums),
            lr,
        };
        let mut entries = traversal.of(module)?;
        let has_statistics = scaler.meet_statistics(entries.take_statistics());
        let decided = self.tested(scaler, optim, grads, entries);
        let tests_micro_batches =
            (self.window.as_ref()).is_some_and(AccumulationWindow::drops_micro_batches);
        scaler.end_call(module, has_statistics, tests_micro_batches);
        decided
    }

    fn tested<O: ModuleOptim>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        grads: StepGradients,
        entries: Entries,
    ) -> Result<Option<GradientsParams>, AmpError> {
        scaler.check_scopes();
        let grads = match (&mut self.window, grads) {
            (Some(window), grads) => {
                scaler.check_accepted(optim, &entries)?;
                match scaler.add_micro_batch(window, grads, entries)? {
                    Some(grads) => grads,
                    None => return Ok(None),
                }
            }
            (None, StepGradients::Plain(grads)) => {
                scaler.check_plain();
                scaler.test(grads, &entries)?
            }
            (None, StepGradients::Scaled(grads)) => {
                let in_own_dtype = scaler.config().parameter_dtype_gradients;
                scaler.unscale_entries(grads, entries.into_gradients(), in_own_dtype)?
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
            scaler.try_update()?;
        }
        Ok(grads)
    }

    /// What comes after a step that was not skipped. `masters` are those of the optimizer.
    pub(crate) fn applied<M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        module: M,
        masters: impl Fn() -> ParamTensors,
    ) -> M {
        let module = match &mut self.ema {
            Some(ema) => ema.update_with(module, &masters),
            None => module,
        };
        scaler.update();
        module
    }

    /// Throws gradients away. Finite ones do not move the scale inside a window that is skipped as a whole.
    pub(crate) fn discard(
        &self,
        scaler: &mut GradScaler,
        grads: StepGradients,
    ) -> Result<(), AmpError> {
        scaler.forget_last_call();
        scaler.settle_dropped()?;
        let frozen = |window: &AccumulationWindow| !window.drops_micro_batches();
        match grads {
            // An overflow is met again and again unless the scale moves.
            StepGradients::Unscaled(grads)
                if !grads.has_overflow() && self.window.as_ref().is_some_and(frozen) =>
            {
                scaler.take_verdict(&grads);
                scaler.try_discard(grads.into_params())
            }
            grads => {
                scaler.try_discard(grads)?;
                scaler.try_update().map(drop)
            }
        }
    }
}

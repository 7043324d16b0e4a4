//! The order of a step: accumulate, unscale, test, guard, clip, step or skip, average the weights, update the scale.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};

use crate::{
    accumulation::AccumulationWindow,
    clip::{ClipRules, Factors},
    ema::Ema,
    entries::{Entries, Traversal},
    error::AmpError,
    gradients::{StepGradients, UnscaledGradients},
    guard::{Decision, StepGuard},
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
    pub(crate) guard: Option<StepGuard>,
    pub(crate) ema: Option<Ema>,
}

/// Gradients to step with.
pub(crate) struct Decided {
    pub(crate) grads: GradientsParams,
    /// What they are multiplied by first.
    pub(crate) factors: Factors,
}

impl From<GradientsParams> for Decided {
    fn from(grads: GradientsParams) -> Self {
        let factors = Factors::new();
        Self { grads, factors }
    }
}

impl StepOptions {
    /// The gradients of a window that is not full, to step with; none if the window is empty, or the step is skipped.
    pub(crate) fn decide_flush<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        lr: &ModuleLearningRate,
    ) -> Result<Option<Decided>, AmpError> {
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
        self.end_call(scaler);
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
    ) -> Result<Option<Decided>, AmpError> {
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
        self.end_call(scaler);
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
    ) -> Result<Option<Decided>, AmpError> {
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
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        mut grads: UnscaledGradients,
    ) -> Result<Option<Decided>, AmpError> {
        let (guard, decision) = self.judge(&mut grads)?;
        let decided = match decision {
            Decision::Hold { reason, is_finite } => {
                scaler.hold(optim, grads, reason, is_finite)?;
                None
            }
            Decision::Step if self.clip.is_empty() => {
                scaler.decide(optim, grads)?.map(Decided::from)
            }
            decision => {
                if let Decision::Clip { reason, .. } = &decision {
                    log::info!("gradients clipped by the guard: {reason}");
                }
                let later = optim.takes_factors();
                let (grads, factors) = grads.clip_by(&self.clip, decision.factor(), later)?;
                let grads = scaler.decide(optim, grads)?;
                grads.map(|grads| Decided { grads, factors })
            }
        };
        // Whatever was refused has left no trace in it.
        self.guard = guard;
        if decided.is_none() {
            scaler.try_update()?;
        }
        Ok(decided)
    }

    /// What the guard says of gradients that are finite. Waits for the device only where nothing has measured them: after a change,
    /// or with a disabled scaler.
    fn judge(
        &self,
        grads: &mut UnscaledGradients,
    ) -> Result<(Option<StepGuard>, Decision), AmpError> {
        let Some(guard) = &self.guard else {
            return Ok((None, Decision::Step));
        };
        let nothing = || Ok((Some(guard.clone()), Decision::Step));
        if grads.has_overflow() || grads.entries().is_empty() {
            return nothing();
        }
        grads.measured()?;
        if grads.has_overflow() {
            return nothing();
        }
        let status = grads.status();
        // What a disabled scaler lets through: the norm is that of the finite values.
        let norm = match status.has_overflow() {
            true => f64::INFINITY,
            false => status.norm(),
        };
        let (next, decision) = guard.judge(norm);
        Ok((Some(next), decision))
    }

    /// Tells the guard what has become of the loss that it was told.
    fn end_call(&mut self, scaler: &GradScaler) {
        if let Some(guard) = &mut self.guard {
            guard.end_call(scaler.last_outcome());
        }
    }

    /// Goes on with the guard of a record.
    pub(crate) fn restore_guard(&mut self, stored: Option<StepGuard>, origin: &str) {
        match (&mut self.guard, stored) {
            (Some(guard), stored) => guard.restore(stored, origin),
            (None, Some(_)) => log::warn!(
                "{origin} holds the state of a guard, but there is none here: `ScaledOptimizer::with_guard` goes on with it"
            ),
            (None, None) => {}
        }
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
        &mut self,
        scaler: &mut GradScaler,
        grads: StepGradients,
    ) -> Result<(), AmpError> {
        scaler.forget_last_call();
        if let Some(guard) = &mut self.guard {
            guard.end_call(Some(StepOutcome::Dropped));
        }
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

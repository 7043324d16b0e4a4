//! The order of a step: accumulate, unscale, test, judge, clip, update the scale, step or skip.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};

use crate::{
    accumulation::AccumulationWindow,
    clip::{ClipRules, Factors},
    entries::{Entries, Traversal},
    error::AmpError,
    gradients::{StepGradients, UnscaledGradients},
    hook::{Hooks, Judgement},
    loss_scale::StepOutcome,
    module_optim::ModuleOptim,
    record::{AmpRecord, WINDOW},
    scaler::GradScaler,
};

/// What a [`ScaledOptimizer`](crate::ScaledOptimizer) adds to a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOptions {
    pub(crate) window: Option<AccumulationWindow>,
    pub(crate) clip: ClipRules,
    pub(crate) hooks: Hooks,
    /// The loss of the next call, if it was told.
    pub(crate) loss: Option<f64>,
}

/// Gradients to step with.
pub(crate) struct Decided {
    pub(crate) grads: GradientsParams,
    /// What they are multiplied by first.
    pub(crate) factors: Factors,
}

impl StepOptions {
    /// The state of a scaler, and of what is kept here.
    pub(crate) fn record_with(&self, scaler: &GradScaler) -> AmpRecord {
        let mut record = scaler.to_record();
        if let Some(window) = self.window.as_ref().filter(|window| !window.is_empty()) {
            record.put(WINDOW, window.state_to_store().into());
        }
        for (name, state) in self.hooks.states() {
            record.put_hook(name, state);
        }
        record
    }

    /// What comes before the step itself: of these gradients, or of a window that is not full. The gradients to step with; none if the step
    /// is skipped, and done with, or the window is not full, or empty.
    pub(crate) fn decide<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        grads: Option<StepGradients>,
        lr: &ModuleLearningRate,
    ) -> Result<Option<Decided>, AmpError> {
        if let Some(StepGradients::Unscaled(grads)) = &grads {
            scaler.take_verdict(grads);
        }
        scaler.settle_dropped()?;
        // All that is to be refused is refused before a window takes the gradients.
        let traversal = Traversal {
            grads: grads.as_ref().map(StepGradients::params),
            sums: self.window.as_ref().map(|window| &window.state.sums),
            lr: Some(lr),
        };
        let mut entries = traversal.of(module)?;
        if grads.is_none()
            && self
                .window
                .as_ref()
                .is_none_or(AccumulationWindow::is_empty)
        {
            scaler.account().outcome = Some(StepOutcome::NoGradients);
            return Ok(None);
        }
        scaler.begin_step(entries.take_buffers());
        let losses = self.window.as_ref().map(|window| window.state.losses);
        let loss = losses.unwrap_or_default().and(self.loss).mean();
        let decided = match self.inspect(scaler, optim, grads, entries) {
            Ok(Some(grads)) => self.judge(scaler, optim, module, grads, loss),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        self.end_call(scaler.last_outcome());
        let tests_micro_batches =
            (self.window.as_ref()).is_some_and(AccumulationWindow::drops_micro_batches);
        scaler.leave_step(module, tests_micro_batches);
        decided
    }

    /// Tests gradients, or those of a window; none if that is not full.
    fn inspect<O: ModuleOptim>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        grads: Option<StepGradients>,
        entries: Entries,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        if grads.is_some() {
            scaler.check_scopes();
        }
        let tested = match (&mut self.window, grads) {
            (Some(window), Some(grads)) => {
                scaler.check_accepted(optim, &entries)?;
                return scaler.add_micro_batch(window, grads, entries);
            }
            (Some(window), None) => scaler.empty(window, entries.into_sums())?,
            (None, Some(grads)) => {
                let in_own_dtype = scaler.config().parameter_dtype_gradients;
                scaler.tested(grads, &entries, in_own_dtype)?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(tested))
    }

    /// Ends the step. The gradients, unless they overflow or a hook rejects them.
    fn judge<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        grads: UnscaledGradients,
        loss: Option<f64>,
    ) -> Result<Option<Decided>, AmpError> {
        let before = self.hooks.clone();
        let ended = self.end_step(scaler, optim, module, grads, loss);
        if ended.is_err() {
            // What is refused leaves no trace.
            self.hooks = before;
        }
        ended
    }

    fn end_step<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        mut grads: UnscaledGradients,
        loss: Option<f64>,
    ) -> Result<Option<Decided>, AmpError> {
        let mut judgement = Judgement::default();
        if !grads.has_overflow() && !grads.entries().is_empty() {
            judgement = self.hooks.judge(&mut grads, loss, module)?;
        }
        if grads.has_overflow() {
            judgement = Judgement::default();
        }
        let Judgement { factor, rejected } = judgement;
        let mut factors = Factors::new();
        // A loss that is not finite may come of a forward pass that has spoilt the buffers.
        let spoilt = rejected.is_some()
            && (loss.is_some_and(|loss| !loss.is_finite()) || !grads.status().norm().is_finite());
        if rejected.is_none() && (factor < 1.0 || !self.clip.is_empty()) {
            let later = optim.takes_factors();
            (grads, factors) = grads.clip_by(&self.clip, factor, later)?;
        }
        let grads = scaler.end_step(optim, grads, rejected)?;
        if spoilt {
            scaler.buffers.suspect();
        }
        Ok(grads.map(|grads| Decided { grads, factors }))
    }

    /// What becomes of the loss that was told for a call.
    fn end_call(&mut self, outcome: Option<StepOutcome>) {
        match outcome {
            // Refused: it may be called again.
            None => return,
            Some(StepOutcome::Accumulated) => {
                if let Some(window) = &mut self.window {
                    window.state.losses = window.state.losses.and(self.loss);
                }
            }
            Some(_) => {}
        }
        self.loss = None;
    }

    /// Throws gradients away. Finite ones do not move the scale inside a window that is skipped as a whole.
    pub(crate) fn discard(
        &mut self,
        scaler: &mut GradScaler,
        grads: StepGradients,
    ) -> Result<(), AmpError> {
        scaler.account().begin_call();
        self.loss = None;
        scaler.settle_dropped()?;
        let frozen = |window: &AccumulationWindow| !window.drops_micro_batches();
        match grads {
            // An overflow is met again and again unless the scale moves.
            StepGradients::Unscaled(grads)
                if !grads.has_overflow() && self.window.as_ref().is_some_and(frozen) =>
            {
                scaler.take_verdict(&grads);
                scaler.discard(grads.into_params())
            }
            grads => {
                scaler.discard(grads)?;
                scaler.update().map(drop)
            }
        }
    }
}

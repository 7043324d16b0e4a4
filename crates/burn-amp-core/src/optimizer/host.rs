//! Steps that the host decides, in their order: accumulate, unscale, test, judge, clip, update the scale, step or skip.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};

use super::ScaledOptimizer;
use crate::error::{AmpError, StepError};
use crate::gradients::{Entries, Factors, StepGradients, UnscaledGradients};
use crate::scale::{in_flight::Resolution, loss_scale::StepOutcome};
use crate::values::{distinct_parameters, parameters};
use crate::{
    scaler::accumulation::AccumulationWindow, update::Update, update::module_optim::ModuleOptim,
};

/// Gradients to step with, and what they are multiplied by first.
type Decided = (GradientsParams, Factors);

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// A step that the host decides: of these gradients, or of a window that is not full.
    pub(super) fn step_on_host<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        module: M,
        grads: Option<StepGradients>,
        update: impl FnOnce(&mut O, Update, M, GradientsParams) -> M,
    ) -> Result<M, StepError<M>> {
        self.scaler.account().begin_call();
        let decided = self.check_loaded(&module);
        let decided = decided.and_then(|()| self.decide(&module, grads, &lr));
        let decided = decided.map_err(|error| error.with_culprit(&module));
        let error = decided.as_ref().err().cloned();
        let module = match decided {
            Ok(Some((grads, factors))) => {
                let module = update(&mut self.optim, Update::of(lr, factors), module, grads);
                let (masters, known) = (|| self.optim.masters(), Resolution::applied());
                Ok((self.options.hooks).applied(module, &masters, None, &known))
            }
            Ok(None) => Ok(module),
            Err(error) => Err(StepError::new(module, error)),
        };
        self.scaler.enter();
        (self.scaler).notify(self.scaler.last_outcome(), error.as_ref());
        module
    }

    /// What comes before the step itself: of these gradients, or of a window that is not full. The gradients to step with; none if the step
    /// is skipped, and done with, or the window is not full, or empty.
    fn decide<M: Module>(
        &mut self,
        module: &M,
        grads: Option<StepGradients>,
        lr: &ModuleLearningRate,
    ) -> Result<Option<Decided>, AmpError> {
        if let Some(grads) = &grads {
            self.scaler.take_tested(grads);
        }
        self.scaler.resolve_dropped()?;
        // All that is to be refused is refused before a window takes the gradients.
        let params = grads.as_ref().map(StepGradients::params);
        let window = self.options.window.as_ref();
        let sums = window.map(|window| &window.state.sums);
        let mut entries = Entries::find(parameters(module), params, sums, Some(lr))?;
        if grads.is_none() && window.is_none_or(AccumulationWindow::is_empty) {
            self.scaler.account().outcome = Some(StepOutcome::NoGradients);
            return Ok(None);
        }
        let loss = self.options.loss;
        let loss = window.map_or(loss, |window| window.state.losses.and(loss).mean());
        let tests_micro_batches = window.is_some_and(|window| window.config.skip_micro_batch);
        (self.scaler).begin_step(module, std::mem::take(&mut entries.buffers));
        let decided = self.test(module, grads, entries, loss);
        let outcome = self.scaler.last_outcome();
        if let Some(window) = &mut self.options.window
            && outcome == Some(StepOutcome::Accumulated)
        {
            window.state.losses = window.state.losses.and(self.options.loss);
        }
        // Refused, it may be called again.
        if outcome.is_some() {
            self.options.loss = None;
        }
        self.scaler.leave_step(module, tests_micro_batches);
        decided
    }

    /// Tests gradients, or those of a window, has them judged, and ends the step: none if the window is not full, if they overflow or if a hook
    /// rejects them.
    fn test<M: Module>(
        &mut self,
        module: &M,
        grads: Option<StepGradients>,
        entries: Entries,
        loss: Option<f64>,
    ) -> Result<Option<Decided>, AmpError> {
        if grads.is_some() {
            self.scaler.check_scopes();
            if self.options.window.is_some() {
                self.scaler.check_accepted(&self.optim, &entries)?;
            }
        }
        let options = &mut self.options;
        let inspected = (self.scaler).inspect(options.window.as_mut(), grads, entries)?;
        let Some(mut grads) = inspected else {
            return Ok(None);
        };
        // A window is empty now: it accumulates no longer, whatever comes of its gradients.
        self.scaler.account().outcome = None;
        let mut judged = None;
        if !grads.skips() && !grads.entries.is_empty() {
            let of_module = || distinct_parameters(module);
            judged = (options.hooks).judge(Some(&mut grads), loss, &of_module)?;
        }
        // A hook may have found an overflow.
        let judged = judged.filter(|_| !grads.skips());
        let (hooks, factor, rejected) =
            judged.unwrap_or_else(|| (options.hooks.clone(), 1.0, None));
        let mut factors = Factors::new();
        // A loss that is not finite may come of a forward pass that has spoilt the buffers.
        let norm = |grads: &UnscaledGradients| Some(grads.known_status()?.norm);
        let is_bad = |number: Option<f64>| number.is_some_and(|number| !number.is_finite());
        let spoilt = rejected.is_some() && (is_bad(loss) || is_bad(norm(&grads)));
        if rejected.is_none() && (factor < 1.0 || !options.clip.is_empty()) {
            let later = self.optim.takes_factors();
            (grads, factors) = grads.clip_by(&options.clip, factor, later)?;
        }
        let grads = self.scaler.end_step(&self.optim, grads, rejected)?;
        options.hooks = hooks;
        if spoilt {
            self.scaler.buffers.suspect();
        }
        Ok(grads.map(|grads| (grads, factors)))
    }

    /// Throws gradients away. Finite ones do not move the scale inside a window that is skipped as a whole.
    pub(super) fn discard_on_host(&mut self, grads: StepGradients) -> Result<(), AmpError> {
        self.scaler.account().begin_call();
        self.options.loss = None;
        self.scaler.resolve_dropped()?;
        let frozen = |window: &AccumulationWindow| !window.config.skip_micro_batch;
        match grads {
            // An overflow comes again and again unless the scale moves.
            StepGradients::Unscaled(grads)
                if !grads.skips() && self.options.window.as_ref().is_some_and(frozen) =>
            {
                self.scaler.pending.take(&grads.pending);
                self.scaler.discard(grads.into_params())
            }
            grads => {
                self.scaler.discard(grads)?;
                self.scaler.advance().map(drop)
            }
        }
    }
}

//! The order of a step: accumulate, unscale, test, judge, clip, update the scale, step or skip.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};

use crate::gradients::clip::{ClipRules, Factors};
use crate::gradients::{StepGradients, UnscaledGradients};
use crate::record::AmpRecord;
use crate::values::{distinct_parameters, parameters};
use crate::{
    error::AmpError, gradients::entries::Entries, scale::loss_scale::StepOutcome,
    scaler::GradScaler, scaler::accumulation::AccumulationWindow, step::hook::Hooks,
    update::module_optim::ModuleOptim,
};

/// What a [`ScaledOptimizer`](crate::ScaledOptimizer) adds to a step.
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    /// The micro-batches that wait for a step.
    pub window: Option<AccumulationWindow>,
    pub(crate) clip: ClipRules,
    /// The hooks, in their order.
    pub hooks: Hooks,
    /// The loss of the next call, if it was told.
    pub(crate) loss: Option<f64>,
    /// Settings that were refused, by the methods that were given them. No step is made with them.
    refused: Vec<(&'static str, AmpError)>,
}

/// Gradients to step with, and what they are multiplied by first.
pub(crate) type Decided = (GradientsParams, Factors);

impl StepOptions {
    /// The first setting that was refused, unless another has taken its place.
    pub fn check(&self) -> Result<(), AmpError> {
        match self.refused.first() {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// A setting that was checked, and is added to others. What is wrong with it is kept.
    pub(crate) fn added<T>(
        &mut self,
        method: &'static str,
        checked: Result<T, AmpError>,
    ) -> Option<T> {
        let refused = |error| self.refused.push((method, error));
        checked.map_err(refused).ok()
    }

    /// As [`added`](Self::added), of a setting that takes the place of the one before, and of what was wrong with that.
    pub(crate) fn replaced<T>(
        &mut self,
        method: &'static str,
        checked: Result<T, AmpError>,
    ) -> Option<T> {
        self.refused.retain(|(other, _)| *other != method);
        self.added(method, checked)
    }

    /// The state of a scaler, and of what is kept here.
    pub fn record_with(&self, scaler: &GradScaler) -> AmpRecord {
        let mut record = scaler.to_record();
        let open = self.window.as_ref().filter(|window| !window.is_empty());
        record.window = open.map(|window| window.state.clone());
        record.hooks = self.hooks.states().collect();
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
        if let Some(grads) = &grads {
            scaler.take_tested(grads);
        }
        scaler.resolve_dropped()?;
        // All that is to be refused is refused before a window takes the gradients.
        let params = grads.as_ref().map(StepGradients::params);
        let window = self.window.as_ref();
        let sums = window.map(|window| &window.state.sums);
        let mut entries = Entries::find(parameters(module), params, sums, Some(lr))?;
        if grads.is_none() && window.is_none_or(AccumulationWindow::is_empty) {
            scaler.account().outcome = Some(StepOutcome::NoGradients);
            return Ok(None);
        }
        let losses = window.map(|window| window.state.losses).unwrap_or_default();
        let loss = losses.and(self.loss).mean();
        let tests_micro_batches = window.is_some_and(|window| window.config.skip_micro_batch);
        scaler.begin_step(std::mem::take(&mut entries.buffers));
        let decided = self.step(scaler, optim, module, grads, entries, loss);
        let outcome = scaler.last_outcome();
        if let Some(window) = &mut self.window
            && outcome == Some(StepOutcome::Accumulated)
        {
            window.state.losses = window.state.losses.and(self.loss);
        }
        // Refused, it may be called again.
        if outcome.is_some() {
            self.loss = None;
        }
        scaler.leave_step(module, tests_micro_batches);
        decided
    }

    /// Tests gradients, or those of a window, and ends the step: none if the window is not full, if they overflow or if a hook rejects them.
    fn step<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        grads: Option<StepGradients>,
        entries: Entries,
        loss: Option<f64>,
    ) -> Result<Option<Decided>, AmpError> {
        if grads.is_some() {
            scaler.check_scopes();
            if self.window.is_some() {
                scaler.check_accepted(optim, &entries)?;
            }
        }
        let Some(grads) = scaler.inspect(self.window.as_mut(), grads, entries)? else {
            return Ok(None);
        };
        // A window is empty now: it accumulates no longer, whatever comes of its gradients.
        scaler.account().outcome = None;
        self.end_step(scaler, optim, module, grads, loss)
    }

    /// Ends the step. The gradients, unless they overflow or a hook rejects them.
    fn end_step<O: ModuleOptim, M: Module>(
        &mut self,
        scaler: &mut GradScaler,
        optim: &O,
        module: &M,
        mut grads: UnscaledGradients,
        loss: Option<f64>,
    ) -> Result<Option<Decided>, AmpError> {
        let mut judged = None;
        if !grads.has_overflow() && !grads.entries.is_empty() {
            let of_module = || distinct_parameters(module);
            judged = self.hooks.judge(Some(&mut grads), loss, &of_module)?;
        }
        // A hook may have found an overflow.
        let judged = judged.filter(|_| !grads.has_overflow());
        let (hooks, factor, rejected) = judged.unwrap_or_else(|| (self.hooks.clone(), 1.0, None));
        let mut factors = Factors::new();
        // A loss that is not finite may come of a forward pass that has spoilt the buffers.
        let spoilt = rejected.is_some()
            && (loss.is_some_and(|loss| !loss.is_finite()) || !grads.status().norm().is_finite());
        if rejected.is_none() && (factor < 1.0 || !self.clip.is_empty()) {
            let later = optim.takes_factors();
            (grads, factors) = grads.clip_by(&self.clip, factor, later)?;
        }
        let counted = scaler.count_step(optim, grads, rejected);
        // It is an iteration, also where it is one overflow too many.
        if scaler.last_outcome().is_some() {
            scaler.update()?;
        }
        let grads = counted?;
        self.hooks = hooks;
        if spoilt {
            scaler.buffers.suspect();
        }
        Ok(grads.map(|grads| (grads, factors)))
    }

    /// Throws gradients away. Finite ones do not move the scale inside a window that is skipped as a whole.
    pub(crate) fn discard(
        &mut self,
        scaler: &mut GradScaler,
        grads: StepGradients,
    ) -> Result<(), AmpError> {
        scaler.account().begin_call();
        self.loss = None;
        scaler.resolve_dropped()?;
        let frozen = |window: &AccumulationWindow| !window.config.skip_micro_batch;
        match grads {
            // An overflow is met again and again unless the scale moves.
            StepGradients::Unscaled(grads)
                if !grads.has_overflow() && self.window.as_ref().is_some_and(frozen) =>
            {
                scaler.unsettled.take(&grads.verdicts);
                scaler.discard(grads.into_params())
            }
            grads => {
                scaler.discard(grads)?;
                scaler.update().map(drop)
            }
        }
    }
}

//! Steps that the host decides, in their order: accumulate, unscale, test, judge, clip, update the scale, step or skip.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};
use std::sync::Arc;

use super::ScaledOptimizer;
use crate::error::{AmpError, StepError};
use crate::gradients::{Entries, Factors, StepGradients, UnscaledGradients, failed_step};
use crate::scale::{
    account::Call,
    device_step::DeviceStep,
    finding::{Rejection, Tested},
    in_flight::Resolution,
    loss_scale::StepOutcome,
};
use crate::scaler::{Failed, Inspected, Scaler, keep_statistics, repair_statistics};
use crate::step::hook::show_applied;
use crate::values::{distinct_parameters, optimizer_dtype, parameters};
use crate::{
    scaler::accumulation::{AccumulationWindow, Losses},
    update::Update,
    update::module_optim::{ModuleOptim, check_accepted},
};

/// The decision on a step: its outcome, and its update.
pub(super) struct Decided {
    pub(super) outcome: StepOutcome,
    /// Gradients to step with, and what they are multiplied by first; none if the step is skipped, or the window is not full, or empty.
    pub(super) grads: Option<(GradientsParams, Factors)>,
}

impl Decided {
    fn without_step(outcome: StepOutcome) -> Self {
        let grads = None;
        Self { outcome, grads }
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// A step that the host decides: of these gradients, or of a window that is not full.
    pub(super) fn step_on_host<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        module: M,
        grads: Option<StepGradients>,
        update: impl FnOnce(&mut O, Update, M, GradientsParams) -> M,
    ) -> Result<M, StepError<M>> {
        let end = |scaler: &mut Scaler, grads: &UnscaledGradients| {
            scaler.end_step(&grads.finding, grads.known_status())
        };
        let ranks = self.scaler.ranks.as_ref();
        let begun = ranks.map(|ranks| self.begin(ranks, &module)).transpose();
        let votes = *begun.as_ref().unwrap_or(&None);
        let decided = begun.map_err(Failed::from);
        let decided = decided.and_then(|_| self.decide(&module, grads, &lr, end));
        let (outcome, stepped) = match decided {
            Ok(Decided { outcome, grads }) => {
                let module = match grads {
                    Some(grads) => self.apply(lr, module, grads, None, update),
                    None => module,
                };
                (Some(outcome), Ok(module))
            }
            Err(Failed { error, outcome }) => {
                if outcome.is_none() {
                    self.scaler.enter(Call::default());
                }
                self.fail(votes, &error);
                (outcome, Err(failed_step(module, error)))
            }
        };
        let error = stepped.as_ref().err().map(|failed| &failed.error);
        self.scaler.notify(outcome, error);
        stepped
    }

    /// Updates a module, and shows it to the hooks. The module with what they have changed. A step of a `device` is decided there, and resolved later.
    pub(super) fn apply<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        module: M,
        (grads, factors): (GradientsParams, Factors),
        device: Option<(&Arc<DeviceStep>, &Resolution)>,
        update: impl FnOnce(&mut O, Update, M, GradientsParams) -> M,
    ) -> M {
        let how = Update {
            lr,
            decides: device.map(|(decides, _)| decides.clone()),
            factors,
        };
        let module = update(&mut self.optim, how, module, grads);
        if self.options.hooks.0.is_empty() {
            return module;
        }
        let (hooks, masters) = (self.options.hooks.each(), || self.optim.masters());
        show_applied(hooks, module, &masters, device)
    }

    /// All that comes before the update. `end` counts what was found.
    pub(super) fn decide<M: Module>(
        &mut self,
        module: &M,
        grads: Option<StepGradients>,
        lr: &ModuleLearningRate,
        end: impl FnOnce(&mut Scaler, &UnscaledGradients) -> Result<StepOutcome, AmpError>,
    ) -> Result<Decided, Failed> {
        if let Some(loaded) = &self.loaded {
            loaded.check(parameters(module))?;
            self.loaded = None;
        }
        if let Some(StepGradients::Unscaled(grads)) = &grads {
            grads.count(&self.scaler.dropped);
        }
        if !self.scaler.dropped.is_empty() {
            self.scaler.resolve_dropped()?;
        }
        // All that is to be refused is refused before a window takes the gradients.
        let params = grads.as_ref().map(StepGradients::params);
        let window = self.options.window.as_ref();
        let sums = window.map(|window| &window.state.sums);
        let mut entries = Entries::find(module, params, sums, Some(lr))?;
        if grads.is_none() && window.is_none_or(AccumulationWindow::is_empty) {
            let call = Call::of(StepOutcome::NoGradients, None);
            self.scaler.enter(call);
            return Ok(Decided::without_step(StepOutcome::NoGradients));
        }
        let losses = window.map(|window| window.state.losses.and(self.options.loss));
        let loss = losses.map_or(self.options.loss, Losses::mean);
        let tests_micro_batches = window.is_some_and(|window| window.config.skip_micro_batch);
        let has_buffers = !entries.buffers.is_empty();
        if has_buffers {
            let buffers = std::mem::take(&mut entries.buffers);
            keep_statistics(&mut self.scaler, module, buffers);
        }
        let decided = self.test(module, grads, entries, loss, end);
        let of_decided = |decided: &Decided| Some(decided.outcome);
        let outcome = (decided.as_ref()).map_or_else(|failed| failed.outcome, of_decided);
        if let (Some(window), Some(losses)) = (&mut self.options.window, losses)
            && outcome == Some(StepOutcome::Accumulated)
        {
            window.state.losses = losses;
        }
        // Refused, it may be called again.
        if outcome.is_some() {
            self.options.loss = None;
        }
        if has_buffers {
            repair_statistics(&mut self.scaler, module, outcome, tests_micro_batches);
        }
        decided
    }

    /// Tests gradients, or those of a window, has them judged and clipped, and ends the step.
    fn test<M: Module>(
        &mut self,
        module: &M,
        grads: Option<StepGradients>,
        entries: Entries,
        mut loss: Option<f64>,
        end: impl FnOnce(&mut Scaler, &UnscaledGradients) -> Result<StepOutcome, AmpError>,
    ) -> Result<Decided, Failed> {
        let options = &mut self.options;
        if grads.is_some() {
            self.scaler.check_scopes();
            // Before a micro-batch enters a window, gradients are refused that the optimizer would not take at the window's end.
            if options.window.is_some() && self.scaler.is_enabled() {
                let in_own_dtype = self.scaler.config().parameter_dtype_gradients;
                check_accepted(&self.optim, &entries.gradients, |entry| {
                    optimizer_dtype(entry.parameter, in_own_dtype).into()
                })?;
            }
        }
        let mut grads =
            match (self.scaler).inspect(options.window.as_mut(), grads, entries, &mut loss)? {
                Inspected::Tested(grads, _) => *grads,
                Inspected::Waits(outcome) => return Ok(Decided::without_step(outcome)),
            };
        let mut judged = None;
        if !options.hooks.0.is_empty() && !grads.finding.skips() && !grads.entries.is_empty() {
            let of_module = || distinct_parameters(module);
            judged = (options.hooks).judge(Some(&mut grads), loss, &of_module)?;
        }
        // A hook may have found an overflow.
        let judged = judged.filter(|_| !grads.finding.skips());
        let (hooks, factor, rejected) = match judged {
            Some((hooks, factor, rejected)) => (Some(hooks), factor, rejected),
            None => (None, 1.0, None),
        };
        let mut factors = Factors::new();
        if rejected.is_none() && (factor < 1.0 || !options.clip.0.is_empty()) {
            let later = self.optim.takes().factors;
            (grads, factors) = grads.clip_by(&options.clip, factor, later)?;
        }
        let (outcome, grads) = self.end(grads, rejected, end)?;
        if let Some(hooks) = hooks {
            self.options.hooks = hooks;
        }
        let grads = grads.map(|grads| (grads, factors));
        Ok(Decided { outcome, grads })
    }

    /// Has the step end. Its outcome, and the gradients if they are to be stepped with: they are finite, and not `rejected`.
    fn end(
        &mut self,
        mut grads: UnscaledGradients,
        rejected: Option<Rejection>,
        end: impl FnOnce(&mut Scaler, &UnscaledGradients) -> Result<StepOutcome, AmpError>,
    ) -> Result<(StepOutcome, Option<GradientsParams>), Failed> {
        check_accepted(&self.optim, &grads.entries, |entry| grads.dtype_of(entry))?;
        if let Some(rejection) = rejected {
            grads.finding.tested = Tested::Rejected(rejection);
        }
        let outcome = end(&mut self.scaler, &grads).map_err(|error| Failed {
            error,
            outcome: Some(grads.finding.outcome()),
        })?;
        let is_applied = matches!(outcome, StepOutcome::Stepped | StepOutcome::NoGradients);
        Ok((outcome, is_applied.then(|| grads.into_tested())))
    }

    /// Throws gradients away. Finite ones do not move the scale inside a window that is skipped as a whole.
    pub(crate) fn discard_on_host(&mut self, grads: StepGradients) -> Result<(), AmpError> {
        self.options.loss = None;
        let resolved = self.scaler.resolve_dropped();
        resolved.inspect_err(|_| self.scaler.enter(Call::default()))?;
        let frozen = |window: &AccumulationWindow| !window.config.skip_micro_batch;
        let is_frozen = self.options.window.as_ref().is_some_and(frozen);
        match grads {
            // An overflow comes again and again unless the scale moves.
            StepGradients::Unscaled(grads) if is_frozen && !grads.finding.skips() => {
                grads.count(&self.scaler.dropped);
                (self.scaler).discard_at_once(grads.into_params().into(), false)
            }
            grads => self.scaler.discard_at_once(grads, true),
        }
    }
}

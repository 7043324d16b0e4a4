use burn::train::{Learner, LearnerModel};
use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLrScheduler, optim::ModuleOptimizer, tensor::DType,
};

use std::{any::type_name, sync::Arc};

use super::Scaled;
use super::steps::checkpoint::{self, Resumed};
use super::steps::{Kind, Steps};
use burn_amp_core::internal::learner::{
    OptimizerState, has_own_optimize, leave, options, set_running, show_loaded, take_loaded,
};
use burn_amp_core::internal::{ParamTensors, Parameter, StepOptions, parameters};
use burn_amp_core::{
    AmpError, BorderFault, Ema, MixedPrecision, ModuleOptim, ScaledOptimizer, Scaler,
};
use burn_amp_optim::Fused;
use burn_amp_pipeline::{PipelinedOptimizer, internal::into_parts};
use burn_amp_torch::MasterWeights;

/// See [`LearnerExt::learner`](super::LearnerExt::learner).
pub(super) fn learner<M: LearnerModel>(
    amp: &MixedPrecision,
    model: M,
    optim: LearnerOptimizer,
    lr_scheduler: ModuleLrScheduler,
) -> Result<Learner<Scaled<M>>, AmpError> {
    check_plain::<M>()?;
    (model.devices().iter()).try_for_each(|device| amp.check_device(device))?;
    let LearnerOptimizer(parts) = optim;
    let parts = parts?;
    let parameters = parameters(&model);
    check_trained(&parameters)?;
    if let Some(loaded) = parts.loaded {
        loaded.check(parameters)?;
    }
    let mut scaler = parts.scaler.unwrap_or_else(|| amp.into());
    let is_pipelined = parts.kind.thread.is_some();
    check_options(amp, &scaler, &parts.options, is_pipelined)?;
    set_running(amp, true);
    if parts.kind.fused || is_pipelined {
        log::info!(
            "the optimizer steps all parameters itself, and does not call the model's own `TrainStep::optimize`, if there is one; a fused \
             optimizer calls it after `ScaledOptimizer::with_own_optimize`"
        );
    }
    let model = model.apply_reparameterization(amp.clone());
    // Burn clones the model: only its forks, for workers, count as optimizers of their own.
    leave(&mut scaler);
    show_loaded(&scaler);
    let resumed = Resumed {
        amp: amp.clone(),
        record: Arc::default(),
    };
    let steps = Steps::new(parts.kind, scaler, parts.options, parts.masters, resumed);
    let model = Scaled {
        inner: model,
        trained: None,
        amp: amp.clone(),
        steps,
        failed: false,
        reloaded: false,
    };
    let mut optim = checkpoint::attach(parts.optim, &model.steps.resumed);
    checkpoint::exchange(&mut optim, Some(model.steps.shared.clone()));
    Ok(Learner::new(model, optim, lr_scheduler))
}

/// Refuses a model that a run has returned: it would count and test each step again, with the optimizer of that run.
fn check_plain<M>() -> Result<(), AmpError> {
    // Rust cannot ask for a `Scaled` of whatever model in another way.
    let outer = |name: &'static str| name.split('<').next();
    if outer(type_name::<M>()) != outer(type_name::<Scaled<()>>()) {
        return Ok(());
    }
    let allowed = "the model in it: `scaled.into_inner().train()`";
    let value = "a `Scaled`, which a run has returned";
    Err(AmpError::refused("model", value, allowed))
}

/// Refuses parameters whose own gradients would be in f16, without the loss scale.
fn check_trained(parameters: &[Parameter]) -> Result<(), AmpError> {
    let is_f16 = |found: &&Parameter| found.is_trained && found.value.dtype() == DType::F16;
    match parameters.iter().find(is_f16) {
        None => Ok(()),
        Some(Parameter { path, .. }) => Err(AmpError::border(
            BorderFault::Parameter,
            Some(path),
            DType::F16,
        )),
    }
}

/// Refuses what no Learner of this handle can step with.
fn check_options(
    amp: &MixedPrecision,
    scaler: &Scaler,
    options: &StepOptions,
    is_pipelined: bool,
) -> Result<(), AmpError> {
    if scaler.precision() != Some(amp) {
        let allowed = "Burn's own, or `ScaledOptimizer::new(optim, &amp)` with the `MixedPrecision` of the learner";
        let value = "a `ScaledOptimizer` with another scale";
        return Err(AmpError::refused("optim", value, allowed));
    }
    if let Some(window) = &options.window {
        let count = window.config().micro_batches;
        let allowed = format!(
            "left out for a Learner, which accumulates by `SupervisedTraining::grads_accumulation({count})`"
        );
        return Err(AmpError::invalid("with_accumulation", count, allowed));
    }
    match is_pipelined && options.hooks.get::<Ema>().is_some() {
        true => Err(not_pipelined("with_ema")),
        false => Ok(()),
    }
}

fn not_pipelined(field: &'static str) -> AmpError {
    let allowed = "left out for a pipelined optimizer in a Learner";
    AmpError::refused(field, "set", allowed)
}

/// An optimizer for [`LearnerExt::learner`](crate::LearnerExt::learner): Burn's `ModuleOptimizer`, a [`Fused`](burn_amp_optim::Fused) optimizer, a [`MasterWeights`](burn_amp_torch::MasterWeights) (for parameters that are bf16
/// themselves), a [`ScaledOptimizer`] around any of them, or a [`PipelinedOptimizer`].
pub struct LearnerOptimizer(Result<Parts, AmpError>);

/// The parts of an optimizer.
struct Parts {
    optim: ModuleOptimizer,
    kind: Kind,
    /// The scaler; none of an optimizer without one.
    scaler: Option<Scaler>,
    options: StepOptions,
    /// A state that was loaded, and compared with no model yet.
    loaded: Option<OptimizerState>,
    /// Masters that no model has.
    masters: ParamTensors,
}

impl Parts {
    fn of<O: ModuleOptim + TryInto<ModuleOptimizer, Error: Into<AmpError>>>(
        optim: O,
    ) -> Result<Self, AmpError> {
        optim.check_settings()?;
        Ok(Self {
            kind: Kind {
                mixed: optim.accepts(DType::F16, DType::F32),
                fused: optim.takes().decision,
                thread: None,
            },
            optim: optim.try_into().map_err(Into::into)?,
            scaler: None,
            options: StepOptions::default(),
            loaded: None,
            masters: ParamTensors::default(),
        })
    }

    fn of_scaled<O: ModuleOptim + TryInto<ModuleOptimizer, Error: Into<AmpError>>>(
        mut optim: ScaledOptimizer<O>,
    ) -> Result<Self, AmpError> {
        optim.check_settings()?;
        let scaler = Some(optim.scaler_mut().clone());
        let (options, loaded) = (options(&mut optim).clone(), take_loaded(&mut optim));
        let has_own_optimize = has_own_optimize(&optim);
        let mut parts = Self::of(optim.into_inner())?;
        parts.kind.fused &= !has_own_optimize;
        Ok(Self {
            scaler,
            options,
            loaded,
            ..parts
        })
    }

    fn of_pipelined<O>(optim: PipelinedOptimizer<O>) -> Result<Self, AmpError>
    where
        O: ModuleOptim + TryInto<ModuleOptimizer, Error: Into<AmpError>> + Send + 'static,
    {
        let pipeline = into_parts(optim)?;
        if has_own_optimize(&pipeline.optim) {
            return Err(not_pipelined("with_own_optimize"));
        }
        let mut parts = Self::of_scaled(pipeline.optim)?;
        parts.masters = pipeline.masters;
        // A pipeline makes a `ScaledOptimizer` of any optimizer.
        let is_scaled = |scaler: &Scaler| scaler.precision().is_some() || scaler.is_enabled();
        parts.scaler = parts.scaler.filter(is_scaled);
        // Its masters take f32 gradients, whatever the optimizer takes.
        parts.kind.mixed = true;
        parts.kind.thread = Some((pipeline.host, pipeline.synchronous));
        Ok(parts)
    }
}

impl From<ModuleOptimizer> for LearnerOptimizer {
    fn from(optim: ModuleOptimizer) -> Self {
        Self(Parts::of(optim))
    }
}

impl<C> From<Fused<C>> for LearnerOptimizer {
    fn from(optim: Fused<C>) -> Self {
        Self(Parts::of(optim))
    }
}

impl From<MasterWeights> for LearnerOptimizer {
    fn from(optim: MasterWeights) -> Self {
        Self(Parts::of(optim))
    }
}

impl<O: ModuleOptim + TryInto<ModuleOptimizer, Error: Into<AmpError>>> From<ScaledOptimizer<O>>
    for LearnerOptimizer
{
    fn from(optim: ScaledOptimizer<O>) -> Self {
        Self(Parts::of_scaled(optim))
    }
}

impl<O> From<PipelinedOptimizer<O>> for LearnerOptimizer
where
    O: ModuleOptim + TryInto<ModuleOptimizer, Error: Into<AmpError>> + Send + 'static,
{
    fn from(optim: PipelinedOptimizer<O>) -> Self {
        Self(Parts::of_pipelined(optim))
    }
}

impl std::fmt::Debug for LearnerOptimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LearnerOptimizer").finish_non_exhaustive()
    }
}

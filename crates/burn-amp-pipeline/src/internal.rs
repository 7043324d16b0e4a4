use burn::{module::Module, tensor::Device};
use burn_amp_core::internal::learner::options as options_of;
use burn_amp_core::internal::{ParamTensors, StepOptions};
use burn_amp_core::{AmpError, ModuleOptim, ScaledOptimizer, Scaler};
use std::mem::take;

use crate::{PipelinedOptimizer, masters::put};

/// The parts of a pipeline.
pub struct Parts<O> {
    pub optim: ScaledOptimizer<O>,
    /// Masters that the module of the program does not hold.
    pub masters: ParamTensors,
    pub host: Device,
    pub synchronous: bool,
}

/// Starts a pipeline of these parts.
pub fn start<O: ModuleOptim + Send + 'static>(
    parts: Parts<O>,
) -> Result<PipelinedOptimizer<O>, AmpError> {
    let mut optim = PipelinedOptimizer::new(parts.optim, parts.host)?;
    (optim.stored, optim.synchronous) = (parts.masters, parts.synchronous);
    Ok(optim)
}

/// Ends a pipeline before its first step, or with all that it was given.
pub fn into_parts<O: ModuleOptim + Send + 'static>(
    mut pipeline: PipelinedOptimizer<O>,
) -> Result<Parts<O>, AmpError> {
    let are_missing = pipeline.is_module_behind();
    for job in take(&mut pipeline.in_flight.0) {
        (job.end)(&mut pipeline.side)?;
    }
    let mut update = pipeline.worker.finish()?;
    pipeline.side.give_back(&mut update.optim);
    Ok(Parts {
        masters: update.masters_or(pipeline.stored, are_missing),
        optim: update.optim,
        host: update.host,
        synchronous: pipeline.synchronous,
    })
}

/// The scaler, as the last update has left it that was received.
pub fn scaler<O>(pipeline: &PipelinedOptimizer<O>) -> &Scaler {
    &pipeline.side.scaler
}

/// The options of the steps, as all that was handed over has left them: waits for that. None where the thread has ended.
pub fn options<O: ModuleOptim + Send + 'static>(
    pipeline: &PipelinedOptimizer<O>,
) -> Option<StepOptions> {
    (pipeline.ask(|update| options_of(&mut update.optim).clone())).ok()
}

/// The module with the parameters that were received last; none before the first step.
pub fn received<O, M: Module>(pipeline: &PipelinedOptimizer<O>, module: &M) -> Option<M> {
    Some(put(module.clone(), pipeline.trained.as_ref()?))
}

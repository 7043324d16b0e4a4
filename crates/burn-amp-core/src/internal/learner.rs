//! What `burn-amp-train` does with a handle whose models a `Learner` trains, and with the record in its checkpoints.

use std::mem::take;

use crate::{AmpError, AmpRecord, ModuleOptim, ScaledOptimizer, Scaler, border::MixedPrecision};
pub use crate::{
    border::mixed_precision::{is_unused, set_running, state_of},
    border::scope::in_model,
    gradients::{by_device, of_this_thread, placeholders},
    optimizer::step_by,
    record::{Container, OptimizerState, SECTION, read, write},
};
use crate::{step::options::StepOptions, values::ParamTensors};

/// Sets the loss scale of the handle to that of a record.
pub fn set_scale(amp: &MixedPrecision, record: &AmpRecord) -> Result<(), AmpError> {
    let scaler = record.scaler.as_ref();
    scaler.map_or(Ok(()), |state| state.resume(amp.live(), "the checkpoint"))
}

/// Takes the optimizer's state out of a record.
pub fn take_optimizer(record: &mut AmpRecord) -> Option<Container> {
    record.optimizer.take()
}

/// Goes on from what [`read`] has read, whose loss scale [`set_scale`] has set. Gives the masters, where a thread is there for them.
pub fn restore(
    read: Option<AmpRecord>,
    scaler: &mut Scaler,
    options: &mut StepOptions,
    is_pipelined: bool,
) -> Result<ParamTensors, AmpError> {
    let mut record = read.unwrap_or_else(|| AmpRecord::empty_of("the checkpoint"));
    options.hooks = options.hooks.restored(&mut record)?;
    let masters = match is_pipelined {
        true => take(&mut record.masters),
        false => ParamTensors::default(),
    };
    record.drop_rest();
    if !scaler.take_counters(&mut record) {
        warn!(
            "the checkpoint is that of a run without a loss scaler: the scaler starts fresh, at loss scale {}",
            f64::from(scaler.loss_scale())
        );
    }
    show_loaded(scaler);
    Ok(masters)
}

/// Takes out a state that was loaded, and compared with no model yet.
pub fn take_loaded<O>(optim: &mut ScaledOptimizer<O>) -> Option<OptimizerState> {
    optim.loaded.take()
}

/// Makes an optimizer of a scaler that counts on, and of the additions to its steps.
pub fn put_together<O: ModuleOptim>(
    optim: O,
    scaler: Scaler,
    options: StepOptions,
) -> ScaledOptimizer<O> {
    let mut optim = ScaledOptimizer::new(optim, scaler);
    optim.options = options;
    optim
}

/// Says whether the model's own `TrainStep::optimize` is to be called.
pub fn has_own_optimize<O>(optim: &ScaledOptimizer<O>) -> bool {
    optim.own_optimize
}

/// The additions to the steps of an optimizer.
pub fn options<O>(optim: &mut ScaledOptimizer<O>) -> &mut StepOptions {
    &mut optim.options
}

/// The inner optimizer, while steps are in flight.
pub fn inner<O>(optim: &mut ScaledOptimizer<O>) -> &mut O {
    &mut optim.optim
}

/// Waits for the steps in flight. From here on the host moves the scale.
pub fn resolve<O: ModuleOptim>(optim: &mut ScaledOptimizer<O>) {
    optim.resolve();
}

/// The record of an optimizer, without the state of the one inside. Waits for the steps in flight.
pub fn record<O: ModuleOptim>(optim: &mut ScaledOptimizer<O>) -> AmpRecord {
    optim.resolve();
    optim.options.record_with(&optim.scaler)
}

/// This scaler is that of a worker from now on: one of several that make the steps of the optimizer that it was cloned from, each with the gradients of
/// all.
pub fn join(scaler: &mut Scaler) {
    scaler.place = scaler.place.worker(&scaler.live, true);
}

/// This scaler makes no steps.
pub fn leave(scaler: &mut Scaler) {
    scaler.place = scaler.place.worker(&scaler.live, false);
}

/// Shows counters that were loaded, or that a `Learner` begins with. Optimizers that are gone count no longer, if no other is there.
pub fn show_loaded(scaler: &Scaler) {
    scaler.live.show(scaler.place.id, true);
}

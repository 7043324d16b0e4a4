//! What `burn-amp-train` does with a handle whose models a `Learner` trains, and with the record in its checkpoints.

use std::mem::take;

use crate::{AmpError, AmpRecord, Scaler, border::MixedPrecision};
pub use crate::{
    border::mixed_precision::{is_unused, set_running, state_of},
    border::scope::in_model,
    gradients::{by_device, placeholders},
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
    scaler.show_loaded();
    Ok(masters)
}

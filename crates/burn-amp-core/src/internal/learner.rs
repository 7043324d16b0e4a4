//! What `burn-amp-train` does with a handle whose models a `Learner` trains, and with the record in its checkpoints.

use burn::optim::{StateSink, StateSource};
use std::{any::Any, mem::take};

use crate::{AmpError, AmpRecord, Scaler, border::MixedPrecision};
pub use crate::{
    gradients::{by_device, placeholders},
    record::{Container, OptimizerState, SECTION},
};
use crate::{step::options::StepOptions, values::ParamTensors};

/// Makes a bare `autocast` open scopes on all threads, or no longer. Returns whether it did before.
pub fn set_running(amp: &MixedPrecision, is_running: bool) -> bool {
    amp.set_in_learner(is_running)
}

/// Runs a model whose bare `autocast` opens scopes of this handle.
pub fn in_model<R>(amp: &MixedPrecision, work: impl FnOnce() -> R) -> R {
    amp.in_model(work)
}

/// Says that nothing has been computed in half precision so far, and that something should have been.
pub fn is_unused(amp: &MixedPrecision) -> bool {
    amp.is_unused()
}

/// The state of the run, which clones of the handle share: a value of one type alone.
///
/// # Panics
///
/// If another type is kept there.
pub fn state_of<T: Any + Default + Send + Sync>(amp: &MixedPrecision) -> &T {
    amp.extension().expect("nothing else is kept there")
}

/// Writes a record as the state of the parameter [`SECTION`], which no model has. Waits for the device.
pub fn write(record: AmpRecord, out: &mut StateSink) -> Result<(), AmpError> {
    record.flatten(out)
}

/// Reads what [`write`] has written. Gives nothing of a run without a scaler.
pub fn read(src: &mut StateSource) -> Result<Option<AmpRecord>, AmpError> {
    AmpRecord::unflatten(src, "the loss scaler's state in the optimizer's record")
}

/// Sets the loss scale of the handle to that of a record.
pub fn set_scale(amp: &MixedPrecision, record: &AmpRecord) -> Result<(), AmpError> {
    record.resume_scale(amp, "the checkpoint")
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

//! The two sides of a step that `burn-amp-pipeline` makes on another thread.

use burn::optim::GradientsParams;

use crate::values::ParamTensors;
use crate::{AmpError, AmpRecord, LossScale, ScaledGradients};
pub use crate::{
    gradients::{failed_step, of_this_thread},
    lock::quietly,
    optimizer::pipelined::{Made, SentStep, Trained, TrainingSide, make_step},
};

/// Gradients of a loss that was multiplied by a factor.
pub fn scaled_by(params: GradientsParams, scale: f32) -> ScaledGradients {
    ScaledGradients { params, scale }
}

/// Refuses a number that the loss scale cannot be set to.
pub fn check_scale(schedule: LossScale, scale: f64) -> Result<(), AmpError> {
    schedule.with_scale("loss_scale", scale).map(|_| ())
}

/// The f32 values of parameters in a record, which the model's own record does not have.
pub fn masters_in(record: &mut AmpRecord) -> &mut ParamTensors {
    &mut record.masters
}

/// The record of a state that cannot be had.
pub fn refused_record(error: AmpError) -> AmpRecord {
    AmpRecord::refused(error)
}

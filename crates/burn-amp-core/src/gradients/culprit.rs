//! What can be named when a run ends because its loss is not finite.

use burn::module::Module;
use burn::tensor::DType;

use super::pass::not_finite;
use crate::error::{AmpError, StepError};
use crate::values::parameters;

/// The failure of a step, with the module as it was given. Names the first parameter that is not finite itself, where that may be the cause, and waits
/// for each device once then.
pub fn failed_step<M: Module>(module: M, mut error: AmpError) -> StepError<M> {
    if let AmpError::LossNotFinite { parameter, .. } = &mut error
        && parameter.is_none()
    {
        let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
        let mut found = parameters(&module);
        found.retain(|parameter| floats.contains(&parameter.value.dtype()));
        let found = not_finite(found).unwrap_or_default();
        *parameter = found.into_iter().next().map(|found| found.path);
    }
    StepError::new(module, error)
}

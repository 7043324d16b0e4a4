//! What can be named when a run ends because its loss is not finite.

use burn::module::Module;
use burn::tensor::DType;

use crate::{error::AmpError, gradients::pass::Pass, values::parameters};

impl AmpError {
    /// Names the first parameter that is not finite itself, where that may be the cause. Waits for each device once then.
    pub(crate) fn with_culprit<M: Module>(mut self, module: &M) -> Self {
        if let Self::LossNotFinite { parameter, .. } = &mut self {
            *parameter = parameter.take().or_else(|| first_not_finite(module));
        }
        self
    }
}

fn first_not_finite<M: Module>(module: &M) -> Option<String> {
    let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
    let mut found = parameters(module);
    found.retain(|parameter| floats.contains(&parameter.value.dtype()));
    let values = found.iter().map(|parameter| parameter.value.clone());
    let (statuses, _) = Pass::over(values.collect()).inspect(Vec::new()).ok()?;
    let mut pairs = found.into_iter().zip(statuses);
    pairs.find_map(|(parameter, status)| (status.non_finite > 0).then_some(parameter.path))
}

//! What the other crates of the workspace need beside the public names. It may change with any release.

pub use crate::{
    beside_burn::{Beside, during},
    error::{in_range, or_panic},
    gradients::clip::Factors,
    gradients::entries::Entries,
    gradients::running_statistics::Statistics,
    gradients::{StepGradients, by_device, placeholders, widened},
    journal::StepEntry,
    lock::{Guard, locked},
    optimizer::{InspectedStep, Stage, refused},
    record::{Container, OptimizerState, checkpoint},
    scale::defaults::{defaults, with_defaults},
    scale::device_step::{DeviceStep, Run},
    scale::rehearsal::{Rehearsal, Rehearses},
    scaler::HandedOver,
    step::options::StepOptions,
    update::Update,
    update::masters::{BurnsState, Masters, WithMaster, masters_of},
    update::module_optim::FRESH,
    values::any_tensor::AnyTensor,
    values::dtype::{is_half, working_dtype},
    values::module_path::{
        ModulePath, Parameter, SCOPED, distinct_parameters, ids_with_gradient, parameters, replaced,
    },
    values::number,
    values::param_tensors::{ParamTensor, ParamTensors},
};
#[cfg(any(test, feature = "counts"))]
pub use crate::{gradients::pass::READS, scale::border_events::READS as EVENT_READS};

//! What the other crates of the workspace need beside the public names. It may change with any release.

pub use crate::{
    any_tensor::{AnyTensor, copied, has_gradient},
    beside_burn::{Beside, during},
    clip::Factors,
    device_step::{DeviceStep, Run},
    dtype::{is_half, working_dtype},
    entries::Entries,
    error::in_range,
    gradients::{StepGradients, by_device, placeholders, widened},
    journal::StepEntry,
    lock::locked,
    masters::{BurnsState, Masters, WithMaster, masters_of},
    module_optim::FRESH,
    module_path::{
        ModulePath, Parameter, SCOPED, distinct_ids, distinct_parameters, parameters, replaced,
    },
    optimizer::{Found, Stage, refused},
    param_tensors::{ParamTensor, ParamTensors},
    record::Container,
    rehearsal::{Rehearsal, Rehearses},
    running_statistics::Statistics,
    scaler::{HandedOver, Reached},
    step_options::StepOptions,
    update::Update,
};
#[cfg(any(test, feature = "counts"))]
pub use crate::{border_events::READS as EVENT_READS, gradient_pass::READS};

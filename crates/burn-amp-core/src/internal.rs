//! What the other crates of the workspace need beside the public names. It may change with any release.

pub use crate::{values::any_tensor::{AnyTensor, copied, has_gradient}, beside_burn::{Beside, during}, gradients::clip::Factors, scale::device_step::{DeviceStep, Run}, values::dtype::{is_half, working_dtype}, gradients::entries::Entries, error::in_range, gradients::{StepGradients, by_device, placeholders, widened}, journal::StepEntry, lock::locked, update::masters::{BurnsState, Masters, WithMaster, masters_of}, update::module_optim::FRESH, values::module_path::{
        ModulePath, Parameter, SCOPED, distinct_ids, distinct_parameters, parameters, replaced,
    }, optimizer::{Found, Stage, refused}, values::param_tensors::{ParamTensor, ParamTensors}, record::Container, scale::rehearsal::{Rehearsal, Rehearses}, gradients::running_statistics::Statistics, scaler::{HandedOver, Reached}, step::options::StepOptions, update::Update};
#[cfg(any(test, feature = "counts"))]
pub use crate::{scale::border_events::READS as EVENT_READS, gradients::pass::READS};

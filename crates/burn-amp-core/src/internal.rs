//! What the other crates of the workspace need beside the public names. It may change with any release.

pub use crate::{
    beside_burn::{Beside, during},
    error::{in_range, or_panic},
    gradients::clip::Factors,
    gradients::entries::Entries,
    gradients::{StepGradients, by_device, placeholders, widened},
    journal::StepEntry,
    lock::{Guard, locked},
    optimizer::{InspectedStep, Stage, refused},
    record::{Container, OptimizerState, SECTION},
    scale::defaults::{defaults, with_defaults},
    scale::device_step::{DeviceStep, Run},
    scale::rehearsal::{Rehearsal, Rehearses},
    scaler::HandedOver,
    step::options::StepOptions,
    update::Update,
    update::masters::{BurnsState, Masters, WithMaster, masters_of},
    update::module_optim::FRESH,
    values::{
        AnyTensor, ParamTensor, ParamTensors, Parameter, SCOPED, distinct_parameters,
        ids_with_gradient, is_half, number, parameters, replaced, working_dtype,
    },
};
#[cfg(any(test, feature = "counts"))]
pub use crate::{gradients::pass::READS, scale::border_events::READS as EVENT_READS};

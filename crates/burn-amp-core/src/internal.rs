//! What the other crates of the workspace need beside the public names. It may change with any release.

pub mod fused;
pub mod learner;
pub mod observe;
pub mod pipeline;
pub mod torch;

pub use crate::{
    beside_burn::during,
    error::{in_range, or_panic},
    gradients::entries::Entries,
    gradients::{StepGradients, widened},
    lock::locked,
    peers::{described, difference},
    scale::followed::Followed,
    settings::settings,
    step::options::StepOptions,
    update::Update,
    update::masters::masters_of,
    values::{
        AnyTensor, ParamTensor, ParamTensors, Parameter, distinct_parameters, is_half, number,
        parameters, replaced, working_dtype,
    },
};
#[cfg(any(test, feature = "counts"))]
pub use crate::{gradients::pass::READS, scale::border_events::READS as EVENT_READS};

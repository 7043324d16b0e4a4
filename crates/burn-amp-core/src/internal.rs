//! What the other crates of the workspace need beside the public names. It may change with any release.

pub mod fused;
pub mod learner;
pub mod observe;
pub mod pipeline;
pub mod torch;

use crate::{Scaler, StepOutcome, scale::account::Call};
pub use crate::{
    beside_burn::during,
    error::{in_range, or_panic},
    gradients::entries::{Entries, put_gradient, take_gradient},
    gradients::{StepGradients, widened},
    lock::locked,
    peers::{described, difference},
    scale::followed::Followed,
    scaler::{detached, keep_statistics, repair_statistics},
    settings::settings,
    step::options::StepOptions,
    update::masters::masters_of,
    update::{Takes, Update},
    values::{
        AnyTensor, ParamTensor, ParamTensors, Parameter, distinct_parameters, is_half, number,
        parameters, replaced, working_dtype,
    },
};
#[cfg(any(test, feature = "counts"))]
pub use crate::{gradients::pass::READS, scale::border_events::READS as EVENT_READS};
pub use burn_amp_kernels::is_remote;

/// Enters a call that was to step, and has not.
pub fn enter_call(scaler: &Scaler, outcome: StepOutcome) {
    scaler.enter(Call::of(outcome, None));
}

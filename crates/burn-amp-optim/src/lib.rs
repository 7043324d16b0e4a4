//! Burn's SGD, Adam and AdamW as one pass over all parameters, and training steps that a device replays.
//!
//! Part of [burn-amp](https://docs.rs/burn-amp), which shows it as `burn_amp::optim`.

mod captured_step;
mod fused;
/// Names for the other crates of the workspace. They may change with any release.
#[doc(hidden)]
pub mod internal {
    #[cfg(any(test, feature = "counts"))]
    pub use crate::fused::PASSES;
    pub use crate::fused::one_pass;
}

const PANICKED: &str = "an earlier step has panicked: resume from the last record";

pub use burn_amp_core::{ModuleOptim, Peers, Scaler, Vote};
pub use captured_step::{CaptureInput, CapturedStep};
pub use fused::{Fused, FusedAdam, FusedAdamW, FusedSgd};

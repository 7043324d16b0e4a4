//! The schedule of the loss scale, as a pure value: no tensors, no device, no clock.
//!
//! A [`LossScale`] is a small state. [`LossScale::adjust`] takes it and the [`StepOutcome`] of one
//! iteration to the next state, always the same for the same input. So a schedule can be replayed,
//! tested without tensors, stored, and cloned into the two futures of a step.
//!
//! The idea of a loss scale as a value with an `adjust` of its own is that of DeepMind's `jmp`
//! (`loss_scale.py`); the arithmetic is that of PyTorch's `_amp_update_scale_`, bit for bit.
//!
//! ```
//! use burn_amp::{DynamicSettings, LossScale, StepOutcome};
//!
//! let settings = DynamicSettings { growth_interval: 2, ..Default::default() };
//! let mut scale = LossScale::dynamic(settings)?;
//! assert_eq!(scale.scale(), 65536.0);
//!
//! // An overflow halves the scale; two clean steps in a row double it.
//! scale = scale.adjust(StepOutcome::Skipped);
//! assert_eq!(scale.scale(), 32768.0);
//! scale = scale.adjust(StepOutcome::Applied).adjust(StepOutcome::Applied);
//! assert_eq!(scale.scale(), 65536.0);
//! # Ok::<(), burn_amp::InvalidValue>(())
//! ```

mod dynamic;
mod fixed;
mod invalid;
mod outcome;
mod schedule;

pub use dynamic::{DynamicLossScale, DynamicSettings, HysteresisRefill};
pub use fixed::StaticLossScale;
pub use invalid::InvalidValue;
pub use outcome::StepOutcome;
pub use schedule::LossScale;

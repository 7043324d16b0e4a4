//! The rules that move a loss scale: PyTorch's, others' and your own.

pub use burn_amp_core::{LossScale, Schedule, schedule::*};

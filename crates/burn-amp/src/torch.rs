//! PyTorch's calls, and parameters in half precision.

pub use burn_amp_core::{GradScaler, MasterWeights, to_full, to_half};

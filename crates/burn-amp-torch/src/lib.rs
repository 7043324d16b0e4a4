//! PyTorch's calls, each of which a program makes by itself, and parameters in half precision.
//!
//! Part of [burn-amp](https://docs.rs/burn-amp), which shows it as `burn_amp::torch`.
//!
//! For one loss and one optimizer, [`ScaledOptimizer`](burn_amp_core::ScaledOptimizer) does all of this in its `step`.
//! A program that calls each part itself uses the scaler alone:
//!
//! ```
//! use burn::{
//!     module::Module, nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::{GradScalerConfig, torch::GradScaler};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 2).init(&device);
//! let mut optim = SgdConfig::new().init();
//! let mut scaler = GradScaler::new(GradScalerConfig::new())?;
//!
//! for _ in 0..3 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let loss = model.forward(input).mean();
//!
//!     let grads = scaler.backward(loss, &model);
//!     let grads = scaler.unscale(grads, &model)?;
//!     model = scaler.try_step(&mut optim, 0.1, model, grads)?;
//!     scaler.update()?;
//! }
//! assert_eq!(scaler.counters().steps(), 3);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod calibrate;
mod grad_scaler;
mod half;
mod master_weights;
mod masters;
mod state_dict;

/// The optimizer of single parameters in [`MasterWeights`], for the other crates of the workspace.
#[doc(hidden)]
pub mod internal {
    pub use crate::masters::{Masters, WithMaster};
}

pub use grad_scaler::GradScaler;
pub use half::{to_full, to_half};
pub use master_weights::MasterWeights;

//! [`GradScaler`]: the loss scale at work on losses, gradients and optimizers.
//!
//! For one loss and one optimizer, [`ScaledOptimizer`](crate::ScaledOptimizer) does all of this in its `step`.
//! The scaler alone serves several optimizers or losses:
//!
//! ```
//! use burn::{
//!     module::Module, nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::GradScalerConfig;
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 2).init(&device);
//! let mut optim = SgdConfig::new().init();
//! let mut scaler = GradScalerConfig::new().init()?;
//!
//! for _ in 0..3 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let loss = model.forward(input).mean();
//!
//!     let grads = scaler.backward(loss, &model);
//!     let grads = scaler.unscale(grads, &model);
//!     model = scaler.try_step(&mut optim, 0.1, model, grads)?;
//!     scaler.update();
//! }
//! assert_eq!(scaler.counters().steps(), 3);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod accumulate;
mod config;
mod counters;
mod grad_scaler;
mod iteration;
mod loss;
mod module_optim;
mod record;
mod settings;
mod state;
mod underflow;
mod verdict;

pub use config::GradScalerConfig;
pub use counters::StepCounters;
pub use grad_scaler::GradScaler;
pub use loss::{LossFactor, ScaleLoss};
pub use module_optim::ModuleOptim;
pub use record::GradScalerRecord;
pub use state::GradScalerState;

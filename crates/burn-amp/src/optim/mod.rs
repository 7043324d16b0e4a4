//! [`ScaledOptimizer`]: any Burn optimizer, with loss scaling in its `step`.
//!
//! ```
//! use burn::{
//!     module::Module, nn::LinearConfig, optim::{AdamConfig, GradientsParams},
//!     tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(MixedPrecision::f16());
//! let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), GradScalerConfig::new().init()?);
//!
//! for _ in 0..3 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let output = model.forward(MixedPrecision::f16().cast(input));
//!     let loss = output.cast(burn::tensor::FloatDType::F32).square().mean();
//!
//!     let grads = GradientsParams::from_grads(optim.scale(loss).backward(), &model);
//!     model = optim.step(0.1, model, grads);
//! }
//! assert_eq!(optim.scaler().counters().skipped(), 0);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod around;
mod config;
mod inner_config;
mod master_weights;
mod record;
mod record_optim;
mod scaled_optimizer;
mod step_options;

pub use config::ScaledOptimizerConfig;
pub use inner_config::InnerOptimizerConfig;
pub use master_weights::{MasterOptimizer, MasterState, MasterWeights};
pub use record::ScaledOptimizerRecord;
pub use record_optim::RecordOptim;
pub use scaled_optimizer::ScaledOptimizer;
#[cfg(feature = "train")]
pub(crate) use step_options::StepOptions;

pub use crate::gradients::StepGradients;

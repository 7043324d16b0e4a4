//! [`ScaledOptimizer`]: any Burn optimizer, with loss scaling in its `step`.
//!
//! ```
//! use burn::{
//!     module::Module, nn::LinearConfig, optim::{AdamConfig, GradientsParams},
//!     tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::{MixedPrecision, ScaledOptimizer};
//!
//! let device = Device::flex().autodiff();
//! let amp = MixedPrecision::f16();
//! let mut model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
//! let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
//!
//! for _ in 0..3 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let loss = amp.autocast(input, |x| model.forward(x)).square().mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &model);
//!     model = optim.step(0.1, model, grads);
//! }
//! assert_eq!(optim.scaler().counters().skipped(), 0);
//! ```

mod around;
mod config;
mod inner_config;
mod loaded;
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

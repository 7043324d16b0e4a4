//! Mixed-precision training for [Burn](https://burn.dev): dynamic loss scaling for any optimizer.
//!
//! In f16, gradients below 6e-8 become zero and those above 65504 infinite. A loss scale moves them into range:
//! multiply the loss before `backward`, divide the gradients in f32 before the optimizer, skip the step and lower
//! the scale when something overflowed, raise it again after many clean steps.
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
//! for _ in 0..10 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let output = amp.autocast(input, |x| model.forward(x)); // f16 inside, f32 outside
//!     let loss = output.square().mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &model);
//!     model = optim.step(1e-3, model, grads); // test, step or skip, move the loss scale
//! }
//! ```
//!
//! - [`MixedPrecision`]: half-precision compute for any model, and the loss scale at its border.
//! - [`GradScaler`]: PyTorch's, for half-precision parameters and ports. [`LossScale`]: its schedule, a pure value.
//! - [`UnscaledGradients`] and their [`GradientStatus`]: [`GradientClip`], [`AccumulationConfig`].
//! - [`ScaledOptimizer`], around any of Burn's optimizers, and [`ScaledOptimizerConfig`]; [`MasterWeights`] for half-precision
//!   parameters; [`AmpRecord`], their state.
//! - [`Ema`]: averages of the weights.
//! - [`MixedPrecision::learner`](MixedPrecision) (feature `train`): Burn's `Learner` in half precision, its metrics and its end.

mod accumulation;
mod cast;
mod check;
mod clip;
mod convert;
mod dtype;
mod ema;
mod entries;
mod error;
mod gradient_pass;
mod gradient_status;
mod gradients;
mod iteration;
mod leaf;
mod live_scale;
mod loss_scale;
mod loss_watch;
mod lr_scheduler;
mod master_weights;
mod mixed_precision;
mod module_optim;
mod module_path;
mod optimizer;
mod optimizer_config;
mod param_tensors;
mod rank;
mod record;
mod running_statistics;
mod scaler;
mod scope;
mod step_counters;
mod step_log;
mod step_options;
#[cfg(feature = "train")]
mod train;
mod unscale;

pub use accumulation::{AccumulationConfig, AccumulationWindow};
pub use burn_amp_kernels::ExponentHistogram;
pub use cast::{Cast, CastFloat};
pub use clip::GradientClip;
pub use convert::{to_full, to_half};
pub use ema::{Ema, EmaConfig};
pub use error::{AmpError, StepError};
pub use gradient_status::GradientStatus;
pub use gradients::{ScaledGradients, UnscaledGradients, sum_of_devices};
pub use loss_scale::{GradScalerConfig, LossScale, StepOutcome};
pub use lr_scheduler::ScaledLrScheduler;
pub use master_weights::MasterWeights;
pub use mixed_precision::MixedPrecision;
pub use module_optim::ModuleOptim;
pub use optimizer::ScaledOptimizer;
pub use optimizer_config::ScaledOptimizerConfig;
pub use record::AmpRecord;
pub use scaler::GradScaler;
pub use scope::{Scope, autocast, in_f32};
pub use step_counters::StepCounters;
#[cfg(feature = "train")]
pub use train::{Resume, Scaled, ScalerMetric, ScalerMonitor};
pub use unscale::{histogram, inspect, try_histogram, try_inspect};

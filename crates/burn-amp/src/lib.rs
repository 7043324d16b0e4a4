//! Mixed-precision training for [Burn](https://burn.dev): layers compute in f16 or bf16, everything else stays in f32.
//!
//! In f16, gradients below 6e-8 become zero and those above 65504 become infinite. A loss scale moves them into range. Where
//! half precision begins and ends, gradients are multiplied by it and divided by it again, so those of `backward` are f32 and
//! unscaled. When gradients overflow, the step is skipped and the scale is lowered. After many clean steps the scale grows.
//!
//! ```
//! use burn::{
//!     nn::LinearConfig, optim::{AdamConfig, GradientsParams},
//!     tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::MixedPrecision;
//!
//! let device = Device::flex().autodiff();
//! let amp = MixedPrecision::f16();
//! let model = LinearConfig::new(4, 2).init(&device);
//! let (mut model, mut optim) = amp.prepare(model, AdamConfig::new().init());
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
//! Begin with these two:
//!
//! - [`MixedPrecision`]: half-precision compute for any model, with its loss scale. [`prepare`](MixedPrecision::prepare) makes a model and its optimizer ready.
//! - [`ScaledOptimizer`]: any of Burn's optimizers, with a test of the gradients before each step.
//!
//! Then, where you need them:
//!
//! - [`GradScalerConfig`]: the settings of the loss scale, [`Schedule`]: the rule that moves it, or one of your own: [`schedule::Rule`]. [`ScaledOptimizerConfig`]: all settings in one JSON file.
//! - [`MixedPrecision::calibrate`]: the first loss scale, measured. [`rescaled`]: parts with a scale of their own.
//! - [`in_f32`]: layers that must stay in f32. [`autocast`]: for models that a `Learner` runs.
//! - [`Guard`]: steps far outside of what was usual are clipped or held back.
//! - [`GradientClip`], [`AccumulationConfig`], [`EmaConfig`]: clipping, accumulation and averages of the weights.
//! - [`UnscaledGradients`], [`GradientStatus`]: to look at gradients, or to change them, before a step.
//! - [`FusedSgd`], [`FusedAdam`], [`FusedAdamW`]: Burn's optimizers, stepping all parameters in one pass.
//! - [`CapturedStep`]: a training step that the device records once and makes again in one call.
//! - [`PipelinedOptimizer`]: the optimizer on a thread of its own, on another device.
//! - [`ScaledLrScheduler`]: a learning-rate schedule that does not advance on a skipped step.
//! - [`AmpRecord`]: the state of all of these, in a file.
//! - [`GradScaler`] and [`MasterWeights`]: PyTorch's calls, for half-precision parameters and ported programs.
//! - `MixedPrecision::launch` (feature `train`): Burn's `Learner` in half precision.

#[macro_use]
mod warning;

mod account;
mod accumulation;
mod adaloss;
mod any_tensor;
mod beside_burn;
mod border;
mod border_events;
mod burn_optimizer;
mod calibrate;
mod captured_step;
mod cast;
mod check;
mod clip;
mod convert;
mod defaults;
mod device_step;
mod dry_run;
mod dtype;
mod ema;
mod entries;
mod error;
mod finding;
mod fused;
mod gradient_pass;
mod gradient_status;
mod gradients;
mod guard;
pub mod hook;
mod in_flight;
mod iteration;
mod journal;
mod ledger;
mod live_scale;
mod lock;
mod loss_scale;
mod loss_watch;
mod lr_scheduler;
mod master_weights;
mod mixed_precision;
mod module_optim;
mod module_path;
mod number;
/// Internal: for `burn-amp-report`.
#[doc(hidden)]
pub mod observe;
mod observer;
mod optimizer;
mod optimizer_config;
mod param_tensors;
mod parts;
mod pending;
mod pipeline;
mod prepare;
mod rank;
mod record;
mod rehearsal;
mod rescale;
mod running_statistics;
mod scaler;
mod scope;
mod step_counters;
mod step_options;
/// A rule of your own for the loss scale.
pub mod schedule {
    pub use crate::loss_scale::{Evidence, Measures, NextScale, Rule};
}
#[cfg(feature = "train")]
mod train;
mod unscale;

pub use accumulation::{AccumulationConfig, AccumulationWindow};
// What `cast_fields!` names.
pub use captured_step::{CaptureInput, CapturedStep};
#[doc(hidden)]
pub use cast::Cast;
pub use cast::CastFloat;
pub use clip::GradientClip;
pub use convert::{to_full, to_half};
pub use ema::{Ema, EmaConfig};
pub use error::{AmpError, StepError};
pub use fused::{Fused, FusedAdam, FusedAdamW, FusedSgd};
pub use gradient_status::GradientStatus;
pub use gradients::{ScaledGradients, UnscaledGradients, sum_of_devices};
pub use guard::Guard;
pub use loss_scale::{GradScalerConfig, LossScale, Schedule, StepOutcome};
pub use lr_scheduler::ScaledLrScheduler;
pub use master_weights::MasterWeights;
pub use mixed_precision::MixedPrecision;
pub use module_optim::ModuleOptim;
pub use optimizer::ScaledOptimizer;
pub use optimizer_config::ScaledOptimizerConfig;
pub use pipeline::PipelinedOptimizer;
pub use record::AmpRecord;
pub use rescale::Rescale;
pub use scaler::GradScaler;
pub use scope::{Scope, autocast, in_f32, rescaled};
pub use step_counters::StepCounters;
#[cfg(feature = "train")]
pub use train::{Resume, Scaled};
pub use unscale::{histogram, inspect};

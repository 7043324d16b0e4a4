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
//! - [`loss_scale`]: the schedule, a pure value.
//! - [`scaler`]: [`GradScaler`], PyTorch's, for half-precision parameters and ports.
//! - [`gradients`]: typed gradients and their [`GradientStatus`], clipping, accumulation.
//! - [`optim`]: [`ScaledOptimizer`], a drop-in for Burn's `ModuleOptimizer`, and its configuration.
//! - [`ema`]: [`Ema`], averages of the weights.
//! - [`MixedPrecision::learner`](MixedPrecision) (feature `train`): Burn's `Learner` in half precision, its metrics and its end.

mod cast_float;
mod check;
mod convert;
pub mod ema;
mod error;
pub mod gradients;
mod leaf;
mod learning_rate;
mod live_scale;
pub mod loss_scale;
mod mixed_precision;
mod module_path;
pub mod optim;
mod param_tensors;
mod rank;
mod record;
pub mod scaler;
mod scope;
#[cfg(feature = "train")]
mod train;

pub use burn_amp_kernels::{ExponentHistogram, UnsupportedDType};
pub use cast_float::CastFloat;
pub use convert::{to_full, to_half};
pub use ema::{Ema, EmaConfig, EmaRecord};
pub use error::AmpError;
pub use gradients::{
    AccumulationConfig, AccumulationWindow, AccumulationWindowRecord, ClipGroup, ClipNorm,
    ClipStatus, GradientClip, GradientClipConfig, GradientDType, GradientMapper, GradientStatus,
    OverflowRule, ScaledGradients, StepGradients, UnscaledGradients, WindowReduction, histogram,
    inspect, sum_of_devices, try_inspect,
};
pub use loss_scale::{
    DynamicLossScale, DynamicSettings, HysteresisRefill, InvalidValue, LossScale, StaticLossScale,
    StepOutcome,
};
pub use mixed_precision::MixedPrecision;
pub use optim::{
    InnerOptimizerConfig, MasterOptimizer, MasterState, MasterWeights, RecordOptim,
    ScaledOptimizer, ScaledOptimizerConfig, ScaledOptimizerRecord,
};
pub use scaler::{
    GradScaler, GradScalerConfig, GradScalerRecord, GradScalerState, LossFactor, ModuleOptim,
    ScaleLoss, StepCounters,
};
pub use scope::{Cast, Scope, autocast, in_f32};
#[cfg(feature = "train")]
pub use train::{Resume, Scaled, ScalerMetric, ScalerMonitor};

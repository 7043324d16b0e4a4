//! Mixed-precision training for [Burn](https://burn.dev): dynamic loss scaling for any optimizer.
//!
//! In f16, gradients below 6e-8 become zero and those above 65504 infinite. A loss scale moves them into range:
//! multiply the loss before `backward`, divide the gradients in f32 before the optimizer, skip the step and lower
//! the scale when something overflowed, raise it again after many clean steps.
//!
//! ```
//! use burn::{
//!     module::Module, nn::LinearConfig, optim::{AdamConfig, GradientsParams},
//!     tensor::{Device, Distribution, FloatDType, Tensor},
//! };
//! use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer};
//!
//! let device = Device::flex().autodiff();
//! let f16 = MixedPrecision::f16();
//! let mut model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(f16.clone());
//! let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), GradScalerConfig::new().init()?);
//!
//! for _ in 0..10 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let output = model.forward(f16.cast(input)).cast(FloatDType::F32);
//!     let loss = output.square().mean();
//!     let grads = GradientsParams::from_grads(optim.scale(loss).backward(), &model);
//!     model = optim.step(1e-3, model, grads);
//! }
//! # Ok::<(), burn_amp::AmpError>(())
//! ```
//!
//! - [`loss_scale`]: the schedule, a pure value.
//! - [`scaler`]: [`GradScaler`], PyTorch's, for several losses or optimizers.
//! - [`gradients`]: typed gradients and their [`GradientStatus`], clipping, accumulation.
//! - [`optim`]: [`ScaledOptimizer`], a drop-in for Burn's `ModuleOptimizer`, and its configuration.
//! - [`ema`]: [`Ema`], averages of the weights.
//! - [`precision`]: [`MixedPrecision`], half-precision compute for any model.
//! - `train` (feature `train`): Burn's `Learner` with loss scaling, and its metrics.

pub mod ema;
mod error;
pub mod gradients;
mod leaf;
pub mod loss_scale;
mod module_path;
pub mod optim;
mod param_tensors;
pub mod precision;
mod rank;
mod record;
pub mod scaler;
#[cfg(feature = "train")]
pub mod train;

pub use burn_amp_kernels::{ExponentHistogram, UnsupportedDType};
pub use ema::{Ema, EmaConfig, EmaRecord};
pub use error::AmpError;
pub use gradients::{
    AccumulationConfig, AccumulationWindow, AccumulationWindowRecord, ClipGroup, ClipNorm,
    ClipStatus, GradientClip, GradientClipConfig, GradientDType, GradientMapper, GradientStatus,
    OverflowRule, ScaledGradients, StepGradients, UnscaledGradients, WindowReduction, histogram,
    inspect, try_inspect,
};
pub use loss_scale::{
    DynamicLossScale, DynamicSettings, HysteresisRefill, InvalidValue, LossScale, StaticLossScale,
    StepOutcome,
};
pub use optim::{
    InnerOptimizerConfig, MasterOptimizer, MasterState, MasterWeights, RecordOptim,
    ScaledOptimizer, ScaledOptimizerConfig, ScaledOptimizerRecord,
};
pub use precision::{CastFloat, CastParameter, MixedPrecision, in_f32, to_full, to_half};
pub use scaler::{
    GradScaler, GradScalerConfig, GradScalerRecord, GradScalerState, LossFactor, ModuleOptim,
    ScaleLoss, ScalerMonitor, ScalerReading, StepCounters,
};
#[cfg(feature = "train")]
pub use train::{
    GradientNormMetric, LossScaleMetric, LossStep, Scaled, SkippedStepsMetric, ZeroGradientsMetric,
};

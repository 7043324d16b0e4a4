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

pub use burn_amp_core::{
    AccumulationConfig, AccumulationWindow, AmpError, AmpRecord, CastFloat, Ema, EmaConfig,
    GradScalerConfig, GradientClip, GradientStatus, LossScale, MixedPrecision, ModuleOptim,
    Rescale, ScaledLrScheduler, ScaledOptimizer, ScaledOptimizerConfig, Schedule, Scope,
    StepCounters, StepError, StepOutcome, UnscaledGradients, autocast, cast_fields, histogram,
    hook, in_f32, inspect, rescaled, schedule, sum_of_devices,
};
pub use burn_amp_optim as optim;
#[cfg(feature = "pipeline")]
pub use burn_amp_pipeline as pipeline;
#[cfg(feature = "train")]
pub use burn_amp_train as train;

#[doc(hidden)]
pub use burn_amp_core::observe;

/// Guards against steps far outside of what was usual.
pub mod adaptive {
    pub use burn_amp_core::Guard;
}

/// PyTorch's calls, and parameters in half precision.
pub mod torch {
    pub use burn_amp_core::{GradScaler, MasterWeights, ScaledGradients, to_full, to_half};
}

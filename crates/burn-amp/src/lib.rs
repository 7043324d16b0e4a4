#![cfg_attr(doc, doc = include_str!(concat!(env!("OUT_DIR"), "/page.md")))]
//! # Where things are
//!
//! Begin with these two:
//!
//! - [`MixedPrecision`]: half-precision compute for any model, with its loss scale. [`prepare`](MixedPrecision::prepare) makes a model and its optimizer ready.
//! - [`ScaledOptimizer`]: any of Burn's optimizers, with a test of the gradients before each step.
//!
//! Then, where you need them:
//!
//! - [`GradScalerConfig`]: the settings of the loss scale. [`ScaledOptimizerConfig`]: all settings in one JSON file. [`schedule`]: the rules that move
//!   the scale, and how to write your own.
//! - [`MixedPrecision::calibrate`]: the first loss scale, measured. [`rescaled`]: regions with a factor of their own.
//! - [`in_f32`]: layers that must stay in f32. [`autocast`]: for models that a `Learner` runs.
//! - [`GradientClip`], [`AccumulationConfig`], [`EmaConfig`]: clipping, accumulation and averages of the weights. [`hook`]: code of your own in a step.
//! - [`gradients`]: to look at gradients, or to change them, before a step.
//! - [`optim`]: SGD, Adam and AdamW that step all parameters in one pass; training steps that a device replays.
//! - [`ScaledLrScheduler`]: a learning-rate schedule that does not advance on a skipped step.
//! - [`AmpRecord`]: the state of optimizer, loss scale, open window and hooks (averages, too), in a file. Model and learning rate have Burn's own records.
//!
//! With a feature of the same name:
//!
//! - `train`: Burn's `Learner` in half precision.
//! - `adaptive`: guards, by which steps far outside of what was usual are clipped or rejected; AdaLoss's factor of a region.
//! - `pipeline`: the optimizer on a thread of its own, on another device.
//! - `torch`: PyTorch's `GradScaler`, and parameters in half precision.
//! - `mpi`: training in several processes, over MPI.
//! - `report`: why a run fails.
//! - `remote-server`: the command `burn-amp serve`, which lends this machine's devices to programs on others.

pub mod gradients;
pub mod schedule;

#[cfg(feature = "adaptive")]
pub use burn_amp_adaptive as adaptive;
pub use burn_amp_core::{
    AccumulationConfig, AmpError, AmpRecord, CastFloat, Ema, EmaConfig, GradScalerConfig,
    GradientClip, MixedPrecision, Rescale, ScaledLrScheduler, ScaledOptimizer,
    ScaledOptimizerConfig, Scope, StepCounters, StepError, StepOutcome, autocast, cast_fields,
    hook, in_f32, rescaled,
};
#[cfg(feature = "mpi")]
pub use burn_amp_mpi as mpi;
pub use burn_amp_optim as optim;
#[cfg(feature = "pipeline")]
pub use burn_amp_pipeline as pipeline;
#[cfg(feature = "report")]
pub use burn_amp_report as report;
#[cfg(feature = "torch")]
pub use burn_amp_torch as torch;
#[cfg(feature = "train")]
pub use burn_amp_train as train;

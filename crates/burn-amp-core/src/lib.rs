//! The core of [burn-amp](https://docs.rs/burn-amp): regions of half precision, the loss scale, and the step of an optimizer.
//!
//! Programs use the crate `burn-amp`, which shows what is here under the names that its documentation uses. What only the crates of its
//! workspace need is in [`internal`], and may change with any release.

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
mod gradient_pass;
mod gradient_status;
mod gradients;
mod guard;
pub mod hook;
mod in_flight;
#[doc(hidden)]
pub mod internal;
mod iteration;
mod journal;
mod last_step;
mod ledger;
mod live_scale;
mod lock;
mod loss_scale;
mod loss_watch;
mod lr_scheduler;
mod master_weights;
mod masters;
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
    pub use crate::scale::loss_scale::{Evidence, Measures, NextScale, Rule};
}
mod unscale;
mod update;

pub use accumulation::{AccumulationConfig, AccumulationWindow};
// What `cast_fields!` names.
#[doc(hidden)]
pub use cast::Cast;
pub use cast::CastFloat;
pub use clip::GradientClip;
pub use convert::{to_full, to_half};
pub use ema::{Ema, EmaConfig};
pub use error::{AmpError, StepError};
pub use gradient_status::GradientStatus;
pub use gradients::{ScaledGradients, UnscaledGradients, sum_of_devices};
pub use guard::Guard;
#[doc(hidden)]
pub use log;
pub use loss_scale::{GradScalerConfig, LossScale, Schedule, StepOutcome};
pub use lr_scheduler::ScaledLrScheduler;
pub use master_weights::MasterWeights;
pub use mixed_precision::MixedPrecision;
pub use module_optim::ModuleOptim;
pub use optimizer::ScaledOptimizer;
pub use optimizer_config::ScaledOptimizerConfig;
pub use record::AmpRecord;
pub use rescale::Rescale;
pub use scaler::GradScaler;
pub use scope::{Scope, autocast, in_f32, rescaled};
pub use step_counters::StepCounters;
pub use unscale::{histogram, inspect};
#[doc(hidden)]
pub use warning::to_standard_error;

//! The core of [burn-amp](https://docs.rs/burn-amp): regions of half precision, the loss scale, and the step of an optimizer.
//!
//! Programs use the crate `burn-amp`, which shows what is here under the names that its documentation uses. What only the crates of its
//! workspace need is in [`internal`], and may change with any release.

#[macro_use]
mod warning;

mod beside_burn;
mod border;
mod check;
mod ema;
mod error;
mod gradients;
#[doc(hidden)]
pub mod internal;
mod lock;
/// What the macros of this crate name.
#[doc(hidden)]
pub mod macros {
    pub use crate::{border::cast::Cast, warning::write_warning};
}
mod optimizer;
mod optimizer_config;
mod peers;
mod prepare;
mod record;
mod scale;
mod scaler;
mod settings;
mod step;
/// A rule of your own for the loss scale.
pub mod schedule {
    pub use crate::scale::loss_scale::{
        AdaptiveInterval, Evidence, LogMax, Measures, NearTop, NextScale, Rule,
    };
}
mod update;
mod values;

pub use border::cast::CastFloat;
pub use border::mixed_precision::MixedPrecision;
pub use border::scope::{Scope, autocast, in_f32, rescaled};
pub use ema::{Ema, EmaConfig};
pub use error::{AmpError, BorderFault, StepError};
pub use gradients::clip::GradientClip;
pub use gradients::status::GradientStatus;
pub use gradients::unscale::{histogram, inspect};
pub use gradients::{ScaledGradients, UnscaledGradients, sum_of_devices};
pub use optimizer::ScaledOptimizer;
pub use optimizer::lr_scheduler::ScaledLrScheduler;
pub use optimizer_config::ScaledOptimizerConfig;
pub use peers::{Peers, Vote};
pub use record::AmpRecord;
pub use scale::loss_scale::{GradScalerConfig, LossScale, Schedule, StepOutcome};
pub use scale::region::Rescale;
pub use scale::step_counters::StepCounters;
pub use scaler::Scaler;
pub use scaler::accumulation::{AccumulationConfig, AccumulationWindow};
pub use step::hook;
pub use update::module_optim::ModuleOptim;

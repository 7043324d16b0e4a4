//! [`Ema`]: an exponential moving average of a model's weights, for evaluation and for the end of the training.
//!
//! [`ScaledOptimizer::with_ema`](crate::ScaledOptimizer::with_ema) keeps one and updates it at every step that was not
//! skipped, in its own record. By itself, with a record of its own:
//!
//! ```
//! use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
//! use burn_amp::{EmaConfig, GradScalerConfig, StepOutcome};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 2).init(&device);
//! let mut optim = SgdConfig::new().init();
//! let mut scaler = GradScalerConfig::new().init()?;
//! let mut ema = EmaConfig::new().with_momentum(0.9).init()?;
//!
//! for _ in 0..10 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let grads = scaler.unscale(scaler.backward(model.forward(input).mean(), &model), &model);
//!     model = scaler.try_step(&mut optim, 0.1, model, grads)?;
//!     // Of this very step: `update` gives the joint outcome of all optimizers, and none where each micro-batch moves the scale.
//!     if scaler.last_outcome() == Some(StepOutcome::Applied) {
//!         model = ema.update(model);
//!     }
//!     scaler.update();
//! }
//! let averaged = ema.module(&model); // to evaluate; training goes on with `model`
//! assert_eq!(averaged.weight.id, model.weight.id);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod average;
mod config;
mod overwrite;
mod record;

pub use average::Ema;
pub use config::EmaConfig;
pub(crate) use record::EmaState;

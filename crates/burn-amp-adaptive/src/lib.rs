//! The parts of burn-amp that look at the gradients of a run: guards against spikes, and a rule for the factors of regions.
//!
//! Part of [burn-amp](https://docs.rs/burn-amp), which shows it as `burn_amp::adaptive`.
//!
//! ```
//! use burn::{
//!     nn::LinearConfig, optim::{GradientsParams, SgdConfig},
//!     tensor::{Device, Tensor},
//! };
//! use burn_amp::{MixedPrecision, adaptive::Guard};
//!
//! let device = Device::flex().autodiff();
//! let amp = MixedPrecision::f16();
//! let (model, optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), SgdConfig::new().init());
//! let mut optim = optim.with_hook(Guard::zclip()); // clips gradients whose norm is an outlier
//!
//! let output = amp.autocast(Tensor::<2>::ones([8, 4], &device), |x| model.forward(x));
//! let grads = GradientsParams::from_grads(output.mean().backward(), &model);
//! let model = optim.step(0.1, model, grads);
//! # let _ = model;
//! ```

mod adaloss;
mod guard;

pub use adaloss::AdaLoss;
pub use guard::{Guard, Outlier, SkipStep, ZClip};

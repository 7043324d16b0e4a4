//! Clipping: between unscaling and the optimizer, with the norms that the unscaling pass has found.
//!
//! ```
//! use burn::{nn::LinearConfig, tensor::{Device, Distribution, Tensor}};
//! use burn_amp::{GradScalerConfig, GradientClip};
//!
//! let device = Device::flex().autodiff();
//! let model = LinearConfig::new(4, 2).init(&device);
//! let scaler = GradScalerConfig::new().init()?;
//! let clip = GradientClip::by_global_norm(0.01)?;
//!
//! let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//! let grads = scaler.unscale(scaler.backward(model.forward(input).sum(), &model), &model).clip(&clip);
//!
//! let global = &grads.status().clip().unwrap().norms()[0];
//! assert_eq!(global.norm(), grads.status().norm()); // before clipping
//! assert!(global.coefficient() < 1.0);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod apply;
mod config;
mod status;
mod threshold;

pub use config::{ClipGroup, GradientClip, GradientClipConfig};
pub use status::{ClipNorm, ClipStatus};

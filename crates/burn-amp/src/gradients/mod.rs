//! Typed gradients: [`ScaledGradients`] carry the loss scale, [`UnscaledGradients`] do not, and no
//! function takes the second for the first, so gradients cannot be unscaled twice (unless
//! [`into_params`](UnscaledGradients::into_params) takes them out of their type).
//!
//! ```
//! use burn::{module::Module, nn::LinearConfig, tensor::{Device, Distribution, Tensor}};
//! use burn_amp::{GradScalerConfig, UnscaledGradients};
//!
//! let device = Device::flex().autodiff();
//! let model = LinearConfig::new(4, 2).init(&device);
//! let scaler = GradScalerConfig::new().init()?;
//!
//! let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//! let scaled = scaler.backward(model.forward(input).mean(), &model);
//! let unscaled: UnscaledGradients = scaler.unscale(scaled, &model);
//!
//! let status = unscaled.status();
//! assert!(!status.has_overflow());
//! println!("L2 norm {}, {:.0} % zeros", status.norm(), 100.0 * status.zero_share());
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod accumulation;
mod clip;
mod dtype;
mod histogram;
mod in_full;
mod pass;
mod scaled;
mod shape;
mod status;
mod step;
mod unscale;
mod unscaled;

pub(crate) use accumulation::WindowState;
pub use accumulation::{AccumulationConfig, AccumulationWindow, OverflowRule, WindowReduction};
pub use clip::{ClipGroup, ClipNorm, ClipStatus, GradientClip, GradientClipConfig};
pub use dtype::GradientDType;
pub(crate) use dtype::{is_half, working_dtype};
pub use histogram::histogram;
pub use scaled::{ScaledGradients, sum_of_devices};
pub(crate) use shape::{check_shape, check_shapes};
pub use status::GradientStatus;
pub use step::StepGradients;
pub use unscale::{inspect, try_inspect};
pub(crate) use unscale::{look, pass_through, test, unscale};
pub(crate) use unscaled::Entry;
pub use unscaled::{GradientMapper, UnscaledGradients};

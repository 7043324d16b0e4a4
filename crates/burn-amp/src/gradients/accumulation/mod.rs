//! Accumulation: the gradients of several micro-batches, summed in f32, make one step.
//!
//! [`ScaledOptimizer::with_accumulation`](crate::ScaledOptimizer::with_accumulation) does it inside `step`. With a
//! [`GradScaler`](crate::GradScaler) alone, where `save` and `load` keep an open window in a file of its own:
//!
//! ```
//! use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
//! use burn_amp::{AccumulationConfig, GradScalerConfig};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 2).init(&device);
//! let mut optim = SgdConfig::new().init();
//! let mut scaler = GradScalerConfig::new().init()?;
//! let mut window = AccumulationConfig::new(4).init()?;
//!
//! for _ in 0..8 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let grads = scaler.backward(model.forward(input).square().mean(), &model);
//!     if let Some(grads) = scaler.accumulate(&mut window, grads, &model)? {
//!         model = scaler.try_step(&mut optim, 0.1, model, grads)?;
//!         scaler.update();
//!     }
//! }
//! assert_eq!(scaler.counters().steps(), 2);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod config;
mod record;
mod sum;
mod window;

pub use config::{AccumulationConfig, OverflowRule, WindowReduction};
pub(crate) use record::WindowState;
pub use window::AccumulationWindow;

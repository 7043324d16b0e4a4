//! One pass over all gradients: unscale them, find what is not finite, and measure them.
//!
//! A Burn backend extension ([`AmpOps`]) under functions that take a list of tensors of any ranks and of mixed
//! f16, bf16, f32 and f64. Backends without kernels of their own use a composition of Burn's tensor operations.
//!
//! [`unscale`] multiplies and measures, [`inspect`] measures, [`histogram`] counts by exponent. [`blend`] is the
//! weighted sum of two tensors, in one pass: what accumulated gradients and averaged weights are made of.
//! [`update`] is the step of an optimizer, over all parameters at once.
//! [`scaled_cast`] is a cast whose backward pass multiplies the gradient: where half precision begins and ends.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burn_amp_kernels::{TensorList, unscale};
//!
//! let device = Device::flex();
//! let mut gradients = TensorList::new();
//! gradients.push(Tensor::<1>::from_floats([3.0, 0.0, f32::INFINITY], &device));
//! gradients.push(Tensor::<2>::from_floats([[8.0, -8.0]], &device));
//!
//! let inverse = Tensor::<1>::from_floats([0.5], &device);
//! let (unscaled, status) = unscale(gradients, inverse)?;
//!
//! let status = status.read(); // the one transfer
//! assert_eq!(status[0].non_finite, 1);
//! assert_eq!(status[1].max_abs, 4.0);
//! assert_eq!(unscaled.get::<2>(1).to_data(), burn::tensor::TensorData::from([[4.0f32, -4.0]]));
//! # Ok::<(), burn_amp_kernels::UnsupportedDType>(())
//! ```

mod answers;
mod backends;
mod blend;
mod cast;
mod clip;
mod device;
mod error;
mod graph;
mod histogram;
mod job;
#[cfg(all(feature = "cubecl", not(feature = "dialects")))]
mod kernel;
/// Internal: for the tests of what CubeCL's compilers make of the kernels.
#[cfg(feature = "dialects")]
#[allow(missing_docs)] // of what CubeCL's macros make
pub mod kernel;
mod list;
#[cfg(feature = "flex")]
mod memory;
mod ops;
mod reading;
mod remote;
mod rule;
mod run;
mod schedule;
mod status;
mod step;
mod two_dtypes;
mod update;
mod watch;
mod words;

#[cfg(feature = "router")]
pub use backends::register_amp_ops;
#[cfg(feature = "remote-server")]
pub use backends::remote_server;
pub use blend::{blend, blend_unless};
pub use cast::{Factor, scaled_cast, watched_cast};
pub use clip::{ClipTable, NormClip, clip_factors};
pub use error::UnsupportedDType;
pub use graph::{Graph, Preparation, panic_message};
pub use histogram::{ExponentHistogram, Histogram};
pub use job::{Elementwise, Job};
pub use list::TensorList;
#[cfg(feature = "flex")]
pub use memory::release_memory;
pub use ops::{AmpOps, BufferAddress, CastOps, TensorVec};
pub use reading::Reading;
pub use remote::{ServerError, ServerFault, check_server, is_remote};
pub use rule::ScaleState;
pub use run::{histogram, inspect, unscale, unscale_in_dtype};
pub use schedule::DeviceScale;
pub use status::{Status, TensorStatus, copied, in_own_memory, is_kept_for_nothing};
pub use step::{UpdateRow, UpdateRule};
pub use two_dtypes::refuses_two_dtypes;
pub use update::{can_update, update};
pub use watch::{EventStatus, PassedGradient, UnreadEvent, Watch, can_watch};

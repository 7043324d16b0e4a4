//! [`MixedPrecision`]: compute in f16 or bf16 over f32 parameters, with no change to the model.
//!
//! ```
//! use burn::{module::Module, nn::LinearConfig, tensor::{DType, Device, Tensor}};
//! use burn_amp::MixedPrecision;
//!
//! let device = Device::flex();
//! let precision = MixedPrecision::f16();
//! let model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(precision.clone());
//!
//! let output = model.forward(precision.cast(Tensor::<2>::ones([1, 4], &device)));
//! assert_eq!(output.dtype(), DType::F16);
//! assert_eq!(model.weight.base().dtype(), DType::F32);
//! ```

mod cast;
mod cast_float;
mod convert;
mod mixed_precision;

pub use cast::CastParameter;
pub use cast_float::{CastFloat, in_f32};
pub use convert::{to_full, to_half};
pub use mixed_precision::MixedPrecision;

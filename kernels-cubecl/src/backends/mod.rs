/// With the type of a float dtype as `T`; f64 is none of the narrow ones.
#[cfg(feature = "flex")]
macro_rules! by_dtype {
    (narrow $dtype:expr, $T:ident => $body:expr) => {
        by_dtype!($dtype, $T => $body; F16 burn::tensor::f16, BF16 burn::tensor::bf16, F32 f32)
    };
    ($dtype:expr, $T:ident => $body:expr) => {
        by_dtype!($dtype, $T => $body; F16 burn::tensor::f16, BF16 burn::tensor::bf16, F32 f32, F64 f64)
    };
    ($dtype:expr, $T:ident => $body:expr; $($name:ident $type:ty),*) => {
        match $dtype {
            $(burn::tensor::DType::$name => {
                type $T = $type;
                $body
            })*
            dtype => panic!("there are no kernels for {dtype:?}"),
        }
    };
}

mod autodiff;
mod compose;
#[cfg(feature = "cubecl")]
mod cubecl;
#[cfg(any(feature = "cubecl", feature = "router"))]
mod custom;
#[cfg(feature = "flex")]
mod flex;
#[cfg(any(feature = "cubecl", feature = "router"))]
mod fusion;
#[cfg(feature = "router")]
mod router;

use burn::backend::DispatchTensor;

use crate::BufferAddress;

pub(crate) use compose::COMPOSED;
#[cfg(feature = "router")]
pub use router::register_amp_ops;
#[cfg(feature = "remote-server")]
pub use router::remote_server;

impl BufferAddress {
    /// That of a tensor; none on devices that do not say. Hands over what the device has queued, and does not wait for it.
    pub fn of(tensor: DispatchTensor) -> Option<Self> {
        #[cfg(feature = "cubecl")]
        use burn::backend::{
            BackendTensor::{Bool, Float, Int},
            DispatchTensorKind,
        };
        #[allow(unreachable_patterns)]
        match tensor.kind {
            #[cfg(feature = "cubecl")]
            DispatchTensorKind::Cube(Float(tensor) | Int(tensor) | Bool(tensor)) => Some(
                <burn_cubecl::Cube as self::cubecl::Located>::address(tensor),
            ),
            _ => None,
        }
    }
}

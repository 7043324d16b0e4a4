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

use burn::backend::{DispatchTensor, DispatchTensorKind, TensorMetadata};
use burn::tensor::DType;

use crate::BufferAddress;

pub(crate) use compose::compose;
#[cfg(feature = "flex")]
pub use flex::release_memory;
#[cfg(feature = "router")]
pub use router::register_amp_ops;
#[cfg(feature = "remote-server")]
pub use router::remote_server;

/// Whether there are kernels for a tensor. Backends beside those of the extension would panic in it.
pub(crate) fn has_kernels(tensor: &DispatchTensor) -> bool {
    #[allow(unused_variables)]
    let narrow = tensor.dtype() != DType::F64;
    #[allow(unreachable_patterns)]
    // which backends there are beside these depends on Burn's features
    let kind = match &tensor.kind {
        DispatchTensorKind::Autodiff(inner) => inner,
        kind => kind,
    };
    match kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => true,
        // Most of their runtimes have no f64.
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(_) => narrow,
        #[cfg(feature = "remote")]
        DispatchTensorKind::Remote(_) => narrow,
        #[cfg(feature = "capture")]
        DispatchTensorKind::Capture(_) => narrow,
        _ => false,
    }
}

/// Whether a tensor, without autodiff, is on one of CubeCL's devices.
pub(crate) fn is_cube(tensor: &DispatchTensor) -> bool {
    #[allow(unreachable_patterns)]
    match tensor.kind {
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(_) => true,
        _ => false,
    }
}

/// Whether a tensor is on Flex, which has done its work when it returns: looking at it waits for nothing.
pub(crate) fn is_flex(tensor: &DispatchTensor) -> bool {
    #[allow(unreachable_patterns)]
    let kind = match &tensor.kind {
        DispatchTensorKind::Autodiff(inner) => inner,
        kind => kind,
    };
    #[allow(unreachable_patterns)]
    match kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => true,
        _ => false,
    }
}

impl BufferAddress {
    /// That of a tensor; none on devices that do not say. Hands over what the device has queued, and does not wait for it.
    pub fn of(tensor: DispatchTensor) -> Option<Self> {
        #[cfg(feature = "cubecl")]
        use burn::backend::BackendTensor::{Bool, Float, Int};
        #[allow(unreachable_patterns)]
        match tensor.kind {
            #[cfg(feature = "cubecl")]
            DispatchTensorKind::Cube(Float(tensor) | Int(tensor) | Bool(tensor)) => {
                Some(<burn_cubecl::Cube as fusion::Located>::address(tensor))
            }
            _ => None,
        }
    }
}

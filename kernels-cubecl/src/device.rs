//! Which kind of device a tensor is on.

use burn::backend::{DispatchTensor, DispatchTensorKind, TensorMetadata};
use burn::tensor::DType;

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

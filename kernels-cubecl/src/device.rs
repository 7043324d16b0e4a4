//! Which kind of device a tensor is on.

use burn::backend::{DispatchDevice, DispatchTensor, TensorMetadata};
use burn::tensor::DType;

/// The kinds of devices that there are kernels for, and all others. Backends beside those of the extension would panic in it.
#[allow(dead_code)] // of those that the features leave out
#[derive(PartialEq)]
pub(crate) enum Kind {
    /// Has done its work when it returns: looking at a tensor waits for nothing.
    Flex,
    Cube,
    Remote,
    Capture,
    Other,
}

impl Kind {
    /// The kind of a device, with autodiff or without.
    pub(crate) fn of(device: &DispatchDevice) -> Self {
        #[allow(unreachable_patterns)]
        // which backends there are beside these depends on Burn's features
        match device {
            DispatchDevice::Autodiff(device) => Self::of(device),
            #[cfg(feature = "flex")]
            DispatchDevice::Flex(_) => Self::Flex,
            #[cfg(feature = "cubecl")]
            DispatchDevice::Cube(_) => Self::Cube,
            #[cfg(feature = "remote")]
            DispatchDevice::Remote(_) => Self::Remote,
            #[cfg(feature = "capture")]
            DispatchDevice::Capture(_) => Self::Capture,
            _ => Self::Other,
        }
    }
}

/// Whether there are kernels for a tensor.
pub(crate) fn has_kernels(tensor: &DispatchTensor) -> bool {
    match Kind::of(&tensor.device()) {
        Kind::Flex => true,
        Kind::Other => false,
        // Most of CubeCL's runtimes have no f64.
        Kind::Cube | Kind::Remote | Kind::Capture => tensor.dtype() != DType::F64,
    }
}

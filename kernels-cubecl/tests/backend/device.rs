//! The device under test, and what it can do.

use burn::tensor::{DType, Device};

/// The device that the features choose; Flex if none names another.
pub fn device() -> Device {
    #[cfg(feature = "cuda")]
    return Device::cuda(0);
    #[cfg(all(feature = "rocm", not(feature = "cuda")))]
    return Device::rocm(0);
    #[cfg(all(
        any(
            feature = "wgpu",
            feature = "vulkan",
            feature = "metal",
            feature = "webgpu"
        ),
        not(any(feature = "cuda", feature = "rocm"))
    ))]
    return Device::wgpu(Default::default());
    #[cfg(all(
        feature = "cpu",
        not(any(
            feature = "cuda",
            feature = "rocm",
            feature = "wgpu",
            feature = "vulkan",
            feature = "metal",
            feature = "webgpu"
        ))
    ))]
    return Device::cpu();
    #[cfg(not(any(
        feature = "cuda",
        feature = "rocm",
        feature = "wgpu",
        feature = "vulkan",
        feature = "metal",
        feature = "webgpu",
        feature = "cpu"
    )))]
    return Device::flex();
}

/// Whether the device under test is of wgpu.
const WGPU: bool = cfg!(all(
    any(
        feature = "wgpu",
        feature = "vulkan",
        feature = "metal",
        feature = "webgpu"
    ),
    not(any(feature = "cuda", feature = "rocm"))
));

/// Whether the device under test is Flex.
const FLEX: bool = !WGPU && !cfg!(any(feature = "cuda", feature = "rocm", feature = "cpu"));

/// Whether subnormal values stay what they are. WGSL lets an implementation take any of them for zero.
pub const KEEPS_SUBNORMALS: bool = !WGPU;

/// How far a norm of the kernels may be from that of the host, relative to it.
pub const TOLERANCE: f64 = if FLEX { 1e-6 } else { 1e-5 };

/// The float dtypes that tensors can have here.
pub fn dtypes() -> Vec<DType> {
    let device = device();
    let mut dtypes = vec![DType::F16, DType::BF16, DType::F32, DType::F64];
    dtypes.retain(|dtype| device.supports_dtype(*dtype));
    dtypes
}

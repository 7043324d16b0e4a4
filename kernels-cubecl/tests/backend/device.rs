//! The device under test, and what it can do.

use std::sync::LazyLock;

use super::*;

/// Burn's default device: the first of the backends that the features name, or the one that the variable
/// `BURN_DEVICE` names (`flex`, `cpu`, `wgpu`, ..).
pub fn device() -> Device {
    Device::default()
}

/// How Burn names the device.
static NAME: LazyLock<String> = LazyLock::new(|| format!("{:?}", device()));

/// Whether the backend has kernels. NdArray is the one that has none.
pub fn has_kernels() -> bool {
    !NAME.contains("NdArray")
}

/// Whether the device is one of CubeCL's.
pub fn is_cube() -> bool {
    NAME.contains("Cube")
}

/// Whether the device is CubeCL's runtime for CPUs.
pub fn is_cpu() -> bool {
    NAME.contains("Cpu")
}

/// Whether subnormal values of a dtype stay what they are. WGSL lets an implementation take any of them for zero,
/// and the CPU runtime widens those of bf16 to zero.
pub fn keeps_subnormals(dtype: DType) -> bool {
    let widened_to_zero = is_cpu() && dtype == DType::BF16;
    !widened_to_zero && !NAME.contains("Wgpu")
}

/// The float dtypes that tensors can have here.
pub fn dtypes() -> Vec<DType> {
    let all = [DType::F16, DType::BF16, DType::F32, DType::F64].into_iter();
    all.filter(|dtype| device().supports_dtype(*dtype))
        .collect()
}

/// Those of them that kernels have everywhere.
pub fn narrow_dtypes() -> Vec<DType> {
    let all = dtypes().into_iter();
    all.filter(|dtype| *dtype != DType::F64).collect()
}

/// Two each of these.
pub fn pairs() -> Vec<(DType, DType)> {
    let dtypes = narrow_dtypes();
    let of = |first| dtypes.iter().map(move |second| (first, *second));
    dtypes.iter().copied().flat_map(of).collect()
}

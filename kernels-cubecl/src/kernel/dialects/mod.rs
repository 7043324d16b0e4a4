//! What CubeCL's compilers make of the kernels in every shape that a launch gives them, without a device.
//!
//! ```sh
//! cargo test -p burn-amp-kernels --features wgpu,dialects --lib dialects
//! ```
//!
//! Every source must write itself, and show what the kernels rest on (see [`facts`]): each tensor is read once, in
//! vectors as wide as the launch asks for; every value that is measured is tested by its bits; nothing is atomic, and nothing asks the
//! compiler whether a float is NaN, which it may assume is not so. How far the sources are compiled after that:
//!
//! - WGSL: naga parses and validates them, with `f16` as the only extension.
//! - SPIR-V: `spirv-val`, if it is installed, validates the modules. Left unvalidated are bf16 where it is older than
//!   `SPV_KHR_bfloat16`, and devices without `VK_KHR_workgroup_memory_explicit_layout`, for which CubeCL 0.11.3
//!   declares shared memory as a pointer to a pointer, in every kernel that has some. naga does not read any of them:
//!   buffers are physical pointers.
//! - CUDA, HIP and MSL: their text alone. The compilers (NVRTC, HIP RTC, Apple's) come with toolkits.
//!
//! CubeCL's `cuda` and `rocm` compile through LLVM instead of C++ by default. That needs the LLVM that CubeCL
//! downloads, and is not tried here.

mod cpp;
mod facts;
mod kernels;
mod spirv;
mod wgsl;

use burn::tensor::DType;
use cubecl_cpp::target::{Cuda, Hip, Metal};
use facts::Facts;
use kernels::Case;

/// Shared memory that every runtime grants: 16 KiB, as WebGPU.
const SHARED_MEMORY: usize = 16 * 1024;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Compares what the sources of all cases show with what the kernels are meant to do.
fn check(dtypes: &[DType], facts: impl Fn(&Case) -> Facts) {
    for case in Case::all(dtypes) {
        assert_eq!(facts(&case), case.expected(), "{case}");
    }
}

#[test]
fn cuda() {
    check(&DTYPES, cpp::facts::<Cuda>);
}

#[test]
fn hip() {
    check(&DTYPES, cpp::facts::<Hip>);
}

#[test]
fn msl() {
    check(&DTYPES, cpp::facts::<Metal>);
}

#[test]
fn wgsl() {
    // It has no bf16.
    check(&[DType::F32, DType::F16], wgsl::facts);
}

#[test]
fn spirv() {
    check(&DTYPES, spirv::facts);
}

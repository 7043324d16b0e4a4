//! What CubeCL's compilers make of the kernels in every shape that a launch gives them, without a device.
//!
//! ```sh
//! DIALECTS=/tmp/dialects cargo test -p burn-amp-dialects --features dialects
//! DIALECTS=/tmp/dialects cargo test -p burn-amp-dialects --features llvm    # PTX too
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
//! - CUDA and HIP: `kernels-cubecl/benches/sass.py` compiles their text, which `DIALECTS` names a folder for.
//! - MSL: its text alone. The compiler is Apple's.
//!
//! CubeCL's `cuda` and `rocm` compile through LLVM instead of C++ by default. That needs the LLVM that CubeCL's build downloads.
//! Feature `llvm` writes CUDA's PTX so. AMD's code is not tried here.

mod cpp;
mod facts;
#[cfg(feature = "llvm")]
mod llvm;
mod shapes;
mod spirv;
mod wgsl;

use std::{env, fs, path::PathBuf};

use burn::tensor::DType;
use cubecl_cpp::target::{Cuda, Hip, Metal};
use facts::Facts;
use shapes::{Shape, Target};

/// Shared memory that every runtime grants: 16 KiB, as WebGPU.
const SHARED_MEMORY: usize = 16 * 1024;

/// As CUDA's runtime has it.
const CUDA: Target = Target {
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    values: 8,
    plane: 32,
    buffers: 1020,
};
const HIP: Target = Target { plane: 64, ..CUDA };
/// Vectors of 4, planes of no certain size, 32 bindings.
const OTHER: Target = Target {
    values: 4,
    plane: 1,
    buffers: 27,
    ..CUDA
};

/// Compares what the sources of all shapes show with what the kernels are meant to do.
fn check(target: Target, facts: impl Fn(&Shape) -> Facts) {
    for shape in Shape::all(target) {
        let (mut found, expected) = (facts(&shape), shape.expected());
        // A compiler may keep a magnitude, or take it anew.
        found.magnitudes = found.magnitudes.min(expected.magnitudes);
        if let Some(floats) = found.loads.get_mut("f32")
            && expected.loads.get("f32") == Some(&(*floats + shape.unread()))
        {
            *floats += shape.unread();
        }
        assert_eq!(found, expected, "{shape}");
    }
}

/// Writes a source to the folder that `DIALECTS` names, if it does.
fn keep(shape: &Shape, source: &str, extension: &str) {
    if let Some(folder) = env::var_os("DIALECTS").map(PathBuf::from) {
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{shape}.{extension}")), source).unwrap();
    }
}

#[test]
fn cuda() {
    check(CUDA, |shape| cpp::facts::<Cuda>(shape, "cu"));
}

/// Local memory would hold an array of the kernel's that LLVM could not keep in registers.
#[cfg(feature = "llvm")]
#[test]
fn ptx() {
    for arch in [80, 90, 100] {
        for shape in Shape::all(CUDA) {
            let source = llvm::ptx(&shape, arch);
            assert!(!source.contains(".local"), "{shape}, sm_{arch}");
        }
    }
}

#[test]
fn hip() {
    check(HIP, |shape| cpp::facts::<Hip>(shape, "hip"));
}

#[test]
fn msl() {
    check(OTHER, |shape| cpp::facts::<Metal>(shape, "metal"));
}

#[test]
fn wgsl() {
    // It has no bf16.
    let target = Target {
        dtypes: &[DType::F32, DType::F16],
        ..OTHER
    };
    check(target, wgsl::facts);
}

#[test]
fn spirv() {
    check(OTHER, spirv::facts);
}

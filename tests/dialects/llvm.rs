//! PTX, as CubeCL's default for CUDA writes it: through LLVM.

use std::ffi::CStr;

use cubecl::{Compiler, ir::nvidia::SmArch};
use cubecl_llvm::{
    LlvmTarget, PlironArtifact, PlironCompiler, PlironOptions, nvptx::ptx_version::PtxVersion,
};

use crate::{SHARED_MEMORY, keep, shapes::Shape};

/// CUDA 12.8 is the first with instructions for sm_100.
const DRIVER: i32 = 12_080;

/// A kernel in the instructions of `sm_{arch}`.
pub(crate) fn ptx(shape: &Shape, arch: u32) -> String {
    let options = PlironOptions {
        sm_arch: Some(SmArch::new(arch, true)),
        ptx_version: PtxVersion::for_driver(DRIVER),
        grid_constants: true,
        ..Default::default()
    };
    let target = LlvmTarget::Nvptx;
    let compiled = PlironCompiler { target }.compile(shape.kernel().define(), &options);
    let compiled = compiled.unwrap_or_else(|error| panic!("{shape}: {error:?}"));
    let PlironArtifact::NvptxCode(module) = compiled else {
        panic!("{shape} is no PTX");
    };
    let shared = module.shared_memory_size;
    assert!(shared <= SHARED_MEMORY, "{shape}");
    let bytes: Vec<u8> = module.ptx.iter().map(|byte| *byte as u8).collect();
    let ptx = CStr::from_bytes_until_nul(&bytes).expect("it ends in a NUL");
    let ptx = ptx.to_string_lossy();
    let source = format!("// {shared} bytes of shared memory\n{ptx}");
    keep(shape, &source, &format!("sm_{arch}.ptx"));
    source
}

//! CubeCL: groups of tensors of one kind, a launch for each group, and one for the last reduction.

mod batch;
mod kept;
mod launch;
mod plan;
#[cfg(test)]
#[path = "../../../tests/units/limits.rs"]
mod tests;

use burn::backend::{Backend, tensor::FloatTensor};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_fusion::{Fusion, FusionBackend};

use crate::{AmpOps, BufferAddress, CastOps, Job, TensorVec, job::Kernels};
use plan::Limits;

const KERNELS: Kernels<CubeTensor> = Kernels {
    pass: |all, factor, edge| launch::pass(&Limits::of(&all[0].client), all, factor, edge),
    histogram: launch::histogram,
    blend: launch::blend,
    mul_cast: launch::mul_cast,
    update: |all, rows, rule| launch::update(&Limits::of(&rows.client), all, rows, rule),
    advance: launch::advance,
    clip: launch::clip,
    decide: launch::decide,
};

impl CastOps for CubeBackend {}

/// Backends that say where their tensors' values are.
pub(super) trait Located: Backend {
    fn address(tensor: FloatTensor<Self>) -> BufferAddress;
}

impl Located for CubeBackend {
    fn address(tensor: CubeTensor) -> BufferAddress {
        let handle = &tensor.handle;
        let memory = handle.memory.descriptor().id.value;
        BufferAddress(memory, handle.offset_start.unwrap_or(0))
    }
}

impl<B: FusionBackend + Located> Located for Fusion<B> {
    fn address(tensor: FloatTensor<Self>) -> BufferAddress {
        let client = tensor.client.clone();
        B::address(client.resolve_tensor_float::<B>(tensor))
    }
}

impl AmpOps for CubeBackend {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        TensorVec(KERNELS.run(tensors.0, job))
    }
}

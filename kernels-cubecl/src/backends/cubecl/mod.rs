//! CubeCL: groups of tensors of one kind, a launch for each group, and one for the last reduction.

mod elementwise;
mod launch;
mod memory;
mod plan;
#[cfg(test)]
mod tests;

use burn::{
    backend::tensor::{FloatTensor, IntTensor},
    tensor::FloatDType,
};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use crate::ops::{AmpOps, CastOps, TensorVec, UnscaledVec};
use launch::Scale;
use plan::Limits;

impl CastOps for CubeBackend {
    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        elementwise::cast(tensor, dtype, factor as f32)
    }
}

fn limits(tensors: &[CubeTensor]) -> Limits {
    Limits::of(&tensors[0].client)
}

impl AmpOps for CubeBackend {
    fn amp_unscale(
        tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
        keep_dtype: bool,
        edge: f32,
    ) -> UnscaledVec<Self> {
        let limits = limits(&tensors.tensors);
        let scale = Scale {
            inverse,
            keep_dtype,
        };
        let (tensors, status) = launch::pass(tensors.tensors, Some(scale), edge, &limits);
        UnscaledVec {
            tensors: TensorVec { tensors },
            status,
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>, edge: f32) -> IntTensor<Self> {
        let limits = limits(&tensors.tensors);
        launch::pass(tensors.tensors, None, edge, &limits).1
    }

    fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self> {
        launch::verdict(words)
    }

    fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
        let limits = limits(&tensors.tensors);
        launch::histogram(tensors.tensors, &limits)
    }

    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        if target.meta.num_elements() == 0 {
            return target;
        }
        elementwise::blend(target, source, keep as f32, add as f32)
    }
}

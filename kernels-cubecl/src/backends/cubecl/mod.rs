//! CubeCL: groups of tensors of one dtype and vector width, a launch for each group, and one for the last reduction.

mod blend;
mod cast;
mod elementwise;
mod group;
mod histogram;
mod launch;
mod plan;

use burn::{
    backend::tensor::{FloatTensor, IntTensor},
    tensor::FloatDType,
};
use burn_cubecl::CubeBackend;

use crate::ops::{AmpOps, CastOps, TensorVec, UnscaledVec};
use plan::{Plan, Writes};

impl CastOps for CubeBackend {
    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        cast::run(tensor, dtype, factor as f32)
    }
}

impl AmpOps for CubeBackend {
    fn amp_unscale(tensors: TensorVec<Self>, inverse: FloatTensor<Self>) -> UnscaledVec<Self> {
        let plan = Plan::new(tensors.tensors, Writes::Yes);
        let (tensors, status) = plan.run(Some(inverse));
        UnscaledVec {
            tensors: TensorVec { tensors },
            status,
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>) -> IntTensor<Self> {
        Plan::new(tensors.tensors, Writes::No).run(None).1
    }

    fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
        histogram::run(tensors.tensors)
    }

    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        blend::run(target, source, keep as f32, add as f32)
    }
}

//! CubeCL: groups of tensors of one dtype and vector width, a launch for each group, and one for the last reduction.

mod blend;
mod cast;
mod elementwise;
mod group;
mod histogram;
mod launch;
mod plan;

use burn::{
    backend::{
        ops::{FloatTensorOps, IntTensorOps},
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, FloatDType, Slice},
};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use crate::{
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
    status::{WORDS, verdict},
};
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
    fn amp_unscale(
        tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
        keep_dtype: bool,
        edge: f32,
    ) -> UnscaledVec<Self> {
        let dtypes: Vec<_> = tensors.tensors.iter().map(|tensor| tensor.dtype).collect();
        let plan = Plan::new(tensors.tensors, Writes::Yes);
        let (mut tensors, mut status) = plan.run(Some(inverse));
        if keep_dtype {
            let narrow = |(tensor, dtype): (CubeTensor, DType)| match tensor.dtype == dtype {
                true => tensor,
                false if tensor.meta.num_elements() == 0 => CubeTensor { dtype, ..tensor },
                false => Self::float_cast(tensor, dtype.into()),
            };
            tensors = tensors.into_iter().zip(dtypes).map(narrow).collect();
            let rounded = Self::amp_inspect(
                TensorVec {
                    tensors: tensors.clone(),
                },
                edge,
            );
            // What was not finite before is only known of the first pass.
            let shape = [tensors.len(), WORDS];
            let rows = [Slice::from(0..tensors.len()), Slice::from(2..4usize)];
            let before = Self::int_slice(Self::int_reshape(status, shape.into()), &rows);
            let words = Self::int_reshape(rounded, shape.into());
            let words = Self::int_slice_assign(words, &rows, before);
            status = Self::int_reshape(words, [tensors.len() * WORDS].into());
        }
        UnscaledVec {
            tensors: TensorVec { tensors },
            status,
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>, _edge: f32) -> IntTensor<Self> {
        Plan::new(tensors.tensors, Writes::No).run(None).1
    }

    fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self> {
        let device = words.device.clone();
        let words = burn_std::reader::try_read_sync(Self::int_into_data(words))
            .and_then(Result::ok)
            .map_or_else(Vec::new, |data| {
                data.iter::<i32>().map(|w| w as u32).collect()
            });
        Self::float_from_data(verdict(&words).into(), &device)
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
        if target.meta.num_elements() == 0 {
            return target;
        }
        blend::run(target, source, keep as f32, add as f32)
    }
}

//! Flex: one pass in SIMD, split over threads where a tensor is large enough to pay for it.

mod cpu;
mod histogram;
mod measure;
mod memory;
mod pass;
mod value;

use burn::{
    backend::{
        Flex,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, FloatDType, TensorData, bf16, f16},
};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::{
    histogram::BINS,
    ops::{AmpOps, CastOps, TensorVec, UnscaledVec},
    words::{Row, verdict},
};
pub use memory::release_memory;
use pass::{Blend, Scale, blend, look, product};
use value::{Real, Value};

/// Lists of fewer values are done before a second thread has woken up.
const PARALLEL: usize = 1 << 15;

macro_rules! by_dtype {
    ($dtype:expr, $T:ident: $($name:ident $type:ty),* => $body:expr) => {
        match $dtype {
            $(DType::$name => {
                type $T = $type;
                $body
            })*
            dtype => panic!("these are floats, not {dtype:?}"),
        }
    };
}

impl CastOps for Flex {
    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        let job = Scale::<f32, false>(factor as f32);
        by_dtype!(tensor.dtype(), S: F16 f16, BF16 bf16, F32 f32 => {
            by_dtype!(dtype.into(), T: F16 f16, BF16 bf16, F32 f32 => {
                product::<S, T, _>(tensor, &job, f32::INFINITY).0
            })
        })
    }
}

impl AmpOps for Flex {
    fn amp_unscale(
        tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
        keep_dtype: bool,
        edge: f32,
    ) -> UnscaledVec<Self> {
        let inverse = inverse.into_data().iter::<f32>().next().unwrap_or(1.0);
        let unscaled = each(tensors.tensors, |tensor| {
            by_dtype!(tensor.dtype(), S: F16 f16, BF16 bf16, F32 f32, F64 f64 => {
                type R = <S as Value>::Real;
                let job = Scale::<R, true>(R::rounded(inverse.into()));
                match keep_dtype {
                    true => product::<S, S, _>(tensor, &job, edge),
                    false => product::<S, R, _>(tensor, &job, edge),
                }
            })
        });
        memory::settle();
        let (tensors, rows) = unscaled.into_iter().unzip();
        UnscaledVec {
            tensors: TensorVec { tensors },
            status: status(rows),
        }
    }

    fn amp_inspect(tensors: TensorVec<Self>, edge: f32) -> IntTensor<Self> {
        let rows = each(
            tensors.tensors,
            |tensor| by_dtype!(tensor.dtype(), T: F16 f16, BF16 bf16, F32 f32, F64 f64 => look::<T>(&tensor, edge)),
        );
        status(rows)
    }

    fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self> {
        let words: Vec<u32> = words.into_data().iter::<i32>().map(|w| w as u32).collect();
        FlexTensor::from_data(TensorData::from(verdict(&words)))
    }

    fn amp_histogram(tensors: TensorVec<Self>) -> IntTensor<Self> {
        let counts = each(
            tensors.tensors,
            |tensor| by_dtype!(tensor.dtype(), T: F16 f16, BF16 bf16, F32 f32, F64 f64 => histogram::count::<T>(&tensor)),
        );
        let total = counts.into_iter().fold([0; BINS], histogram::add);
        words(
            total
                .iter()
                .flat_map(|count| [*count as u32, (count >> 32) as u32]),
        )
    }

    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        by_dtype!(source.dtype(), S: F16 f16, BF16 bf16, F32 f32, F64 f64 => {
            by_dtype!(target.dtype(), T: F32 f32, F64 f64 => {
                let (keep, add) = (T::rounded(keep), T::rounded(add));
                blend::<S, T>(target, &source, &Blend { keep, add })
            })
        })
    }
}

/// Works on each tensor of the list, and in the order of the list on the results.
fn each<R: Send>(tensors: Vec<FlexTensor>, work: impl Fn(FlexTensor) -> R + Send + Sync) -> Vec<R> {
    let elements = |tensor: &FlexTensor| tensor.layout().num_elements();
    if tensors.iter().map(elements).sum::<usize>() < PARALLEL {
        return tensors.into_iter().map(work).collect();
    }
    tensors.into_par_iter().map(work).collect()
}

fn status(rows: Vec<Row>) -> FlexTensor {
    words(rows.iter().flat_map(Row::words))
}

fn words(words: impl Iterator<Item = u32>) -> FlexTensor {
    let words: Vec<i32> = words.map(|word| word as i32).collect();
    let length = words.len();
    FlexTensor::from_data(TensorData::new(words, [length]))
}

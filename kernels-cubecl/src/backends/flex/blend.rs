//! Flex: a weighted sum in one pass, in SIMD and with threads.

use burn::tensor::{DType, Element, TensorData, bf16, f16};
use burn_flex::FlexTensor;
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt as Halves;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{BLOCK, CHUNK, widen};

pub(super) fn run(target: FlexTensor, source: FlexTensor, keep: f64, add: f64) -> FlexTensor {
    match target.dtype() {
        DType::F32 => blend(target, source, keep as f32, add as f32),
        DType::F64 => blend(target, source, keep, add),
        dtype => panic!("a weighted sum is f32 or f64, not {dtype:?}"),
    }
}

fn blend<T: Sum>(target: FlexTensor, source: FlexTensor, keep: T, add: T) -> FlexTensor {
    let source = source.to_contiguous();
    let mut target = own::<T>(target);
    let values = target
        .try_storage_mut::<T>()
        .expect("a buffer that is ours alone");
    match source.dtype() {
        DType::F16 => over(values, of::<f16>(&source), |t, s| {
            T::add_half(t, s, keep, add)
        }),
        DType::BF16 => over(values, of::<bf16>(&source), |t, s| {
            T::add_half(t, s, keep, add)
        }),
        DType::F32 => over(values, of::<f32>(&source), |t, s| {
            T::add_f32(t, s, keep, add)
        }),
        DType::F64 => over(values, of::<f64>(&source), |t, s| {
            T::add_f64(t, s, keep, add)
        }),
        dtype => panic!("a float is added, not {dtype:?}"),
    }
    target
}

/// The tensor itself if its buffer is ours alone and whole, or else a copy.
fn own<T: Element + Pod>(mut tensor: FlexTensor) -> FlexTensor {
    tensor = tensor.to_contiguous();
    let whole = tensor.layout().start_offset() == 0
        && tensor.bytes().len() == tensor.layout().num_elements() * size_of::<T>();
    if whole && tensor.try_storage_mut::<T>().is_some() {
        return tensor;
    }
    let shape = tensor.layout().shape().clone();
    FlexTensor::from_data(TensorData::new(of::<T>(&tensor).to_vec(), shape))
}

fn of<T: Element + Pod>(tensor: &FlexTensor) -> &[T] {
    tensor
        .as_slice::<T>()
        .expect("contiguous, and of this dtype")
}

fn over<T: Send, S: Sync>(
    target: &mut [T],
    source: &[S],
    work: impl Fn(&mut [T], &[S]) + Send + Sync,
) {
    if target.len() <= CHUNK {
        return work(target, source);
    }
    target
        .par_chunks_mut(CHUNK)
        .zip(source.par_chunks(CHUNK))
        .for_each(|(target, source)| work(target, source));
}

/// f32 or f64: what is summed in.
trait Sum: Element + Pod + Send + Sync {
    fn add_half<H>(target: &mut [Self], source: &[H], keep: Self, add: Self)
    where
        H: Element + Pod,
        [H]: Halves,
    {
        let mut wide = [0f32; BLOCK];
        for (target, source) in target.chunks_mut(BLOCK).zip(source.chunks(BLOCK)) {
            let wide = &mut wide[..source.len()];
            widen(source, wide);
            Self::add_f32(target, wide, keep, add);
        }
    }

    fn add_f32(target: &mut [Self], source: &[f32], keep: Self, add: Self);

    fn add_f64(target: &mut [Self], source: &[f64], keep: Self, add: Self);
}

impl Sum for f32 {
    fn add_f32(target: &mut [f32], source: &[f32], keep: f32, add: f32) {
        Arch::new().dispatch(Add {
            target,
            source,
            keep,
            add,
        });
    }

    fn add_f64(target: &mut [f32], source: &[f64], keep: f32, add: f32) {
        for (target, source) in target.iter_mut().zip(source) {
            *target = keep * *target + add * *source as f32;
        }
    }
}

impl Sum for f64 {
    fn add_f32(target: &mut [f64], source: &[f32], keep: f64, add: f64) {
        for (target, source) in target.iter_mut().zip(source) {
            *target = keep * *target + add * f64::from(*source);
        }
    }

    fn add_f64(target: &mut [f64], source: &[f64], keep: f64, add: f64) {
        for (target, source) in target.iter_mut().zip(source) {
            *target = keep * *target + add * *source;
        }
    }
}

struct Add<'a> {
    target: &'a mut [f32],
    source: &'a [f32],
    keep: f32,
    add: f32,
}

impl WithSimd for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (target, source) in self.target.iter_mut().zip(self.source) {
            *target = self.keep * *target + self.add * *source;
        }
    }
}

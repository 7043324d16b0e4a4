//! Flex: a cast and a multiplication in one pass, in SIMD and with threads.

use burn::tensor::{DType, Element, FloatDType, bf16, f16};
use burn_flex::FlexTensor;
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{BLOCK, CHUNK, is_whole, written};

pub(super) fn run(tensor: FlexTensor, dtype: FloatDType, factor: f32) -> FlexTensor {
    match tensor.dtype() {
        DType::F16 => from::<f16>(tensor, dtype, factor),
        DType::BF16 => from::<bf16>(tensor, dtype, factor),
        DType::F32 => from::<f32>(tensor, dtype, factor),
        dtype => panic!("gradients are f16, bf16 or f32 here, not {dtype:?}"),
    }
}

fn from<S: Wide>(tensor: FlexTensor, dtype: FloatDType, factor: f32) -> FlexTensor {
    match dtype {
        FloatDType::F16 => mul_cast::<S, f16>(tensor, factor),
        FloatDType::BF16 => mul_cast::<S, bf16>(tensor, factor),
        FloatDType::F32 => mul_cast::<S, f32>(tensor, factor),
        dtype => panic!("gradients are f16, bf16 or f32 here, not {dtype:?}"),
    }
}

/// In place where the dtype stays and nobody else holds the buffer.
fn mul_cast<S: Wide, T: Wide>(mut tensor: FlexTensor, factor: f32) -> FlexTensor {
    if S::dtype() == T::dtype()
        && is_whole::<T>(&tensor)
        && let Some(values) = tensor.try_storage_mut::<T>()
    {
        values.par_chunks_mut(CHUNK).for_each(|chunk| {
            let mut copy = [T::default(); BLOCK];
            for target in chunk.chunks_mut(BLOCK) {
                let source = &mut copy[..target.len()];
                source.copy_from_slice(target);
                multiply(source, target, factor);
            }
        });
        return tensor;
    }
    let (product, _) = written(&tensor, |source: &[S], target: &mut [T], _| {
        multiply(source, target, factor);
    });
    product
}

/// Up to [`BLOCK`] values.
fn multiply<S: Wide, T: Wide>(source: &[S], target: &mut [T], factor: f32) {
    Arch::new().dispatch(Multiply {
        source,
        target,
        factor,
    });
}

struct Multiply<'a, S, T> {
    source: &'a [S],
    target: &'a mut [T],
    factor: f32,
}

impl<S: Wide, T: Wide> WithSimd for Multiply<'_, S, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<A: Simd>(self, _: A) {
        let mut wide = [0f32; BLOCK];
        let wide = &mut wide[..self.source.len()];
        S::widen(self.source, wide);
        for value in wide.iter_mut() {
            *value *= self.factor;
        }
        T::narrow(wide, self.target);
    }
}

/// What is multiplied in f32.
trait Wide: Element + Pod + Send + Sync + Default {
    fn widen(source: &[Self], target: &mut [f32]);

    fn narrow(source: &[f32], target: &mut [Self]);
}

impl Wide for f32 {
    #[inline(always)]
    fn widen(source: &[f32], target: &mut [f32]) {
        target.copy_from_slice(source);
    }

    #[inline(always)]
    fn narrow(source: &[f32], target: &mut [f32]) {
        target.copy_from_slice(source);
    }
}

/// `half` has f16 instructions of its own; its loops over bf16 become SIMD in a dispatch.
macro_rules! halves {
    ($($half:ty)*) => {$(
        impl Wide for $half {
            #[inline(always)]
            fn widen(source: &[$half], target: &mut [f32]) {
                source.convert_to_f32_slice(target);
            }

            #[inline(always)]
            fn narrow(source: &[f32], target: &mut [$half]) {
                target.convert_from_f32_slice(source);
            }
        }
    )*};
}

halves! { f16 bf16 }

//! Casts and sums, value by value: units go over a tensor in steps of all of them.

use burn::{
    backend::{TensorMetadata, ops::FloatTensorOps},
    tensor::{DType, FloatDType, bf16, f16},
};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{client::Client, prelude::*};

use super::{
    memory::{Laid, may_overwrite},
    plan::Limits,
};
use crate::kernel;

/// Vectors that a unit reads, where there are cubes enough.
const VECTORS_PER_UNIT: usize = 4;

/// Of f16, bf16 or f32 to any of them.
pub(super) fn cast(tensor: CubeTensor, dtype: FloatDType, factor: f32) -> CubeTensor {
    match tensor.dtype {
        // Burn's multiplication is one launch too, and in place where it may be.
        DType::F32 if dtype == FloatDType::F32 => {
            CubeBackend::float_mul_scalar(tensor, factor.into())
        }
        DType::F16 => cast_from::<f16>(tensor, dtype, factor),
        DType::BF16 => cast_from::<bf16>(tensor, dtype, factor),
        DType::F32 => cast_from::<f32>(tensor, dtype, factor),
        dtype => panic!("gradients are f16, bf16 or f32 here, not {dtype:?}"),
    }
}

fn cast_from<I: Float + CubeElement>(
    tensor: CubeTensor,
    dtype: FloatDType,
    factor: f32,
) -> CubeTensor {
    match dtype {
        FloatDType::F16 => mul_cast::<I, f16>(tensor, dtype, factor),
        FloatDType::BF16 => mul_cast::<I, bf16>(tensor, dtype, factor),
        FloatDType::F32 => mul_cast::<I, f32>(tensor, dtype, factor),
        dtype => panic!("gradients are f16, bf16 or f32 here, not {dtype:?}"),
    }
}

fn mul_cast<I: Float + CubeElement, O: Float + CubeElement>(
    tensor: CubeTensor,
    dtype: FloatDType,
    factor: f32,
) -> CubeTensor {
    let laid = Laid::dense(tensor);
    let client = &laid.tensor.client;
    let (count, dim) = spread(client, &laid);
    let product = product_of(&laid, dtype.into());
    // SAFETY: both are dense, in one order and of one length, beyond which units do nothing.
    unsafe {
        kernel::mul_cast::launch_unchecked::<I, O>(
            client,
            count,
            dim,
            laid.vector,
            laid.whole(),
            BufferArg::from_raw_parts(product.handle.clone(), laid.span / laid.vector),
            factor,
        );
    }
    product
}

/// A new tensor whose values lie in the order in which those of another do.
pub(super) fn product_of(laid: &Laid, dtype: DType) -> CubeTensor {
    let tensor = &laid.tensor;
    CubeTensor::new(
        tensor.client.clone(),
        tensor.client.empty(laid.buffer_len() * dtype.size()),
        *tensor.meta.clone(),
        tensor.device.clone(),
        dtype,
    )
}

/// The sum of f32 `target` and f16, bf16 or f32 `source`, weighted.
pub(super) fn blend(target: CubeTensor, source: CubeTensor, keep: f32, add: f32) -> CubeTensor {
    match source.dtype {
        DType::F16 => blend_from::<f16>(target, source, keep, add),
        DType::BF16 => blend_from::<bf16>(target, source, keep, add),
        _ => blend_from::<f32>(target, source, keep, add),
    }
}

fn blend_from<S: Float + CubeElement>(
    target: CubeTensor,
    source: CubeTensor,
    keep: f32,
    add: f32,
) -> CubeTensor {
    let mut target = Laid::dense(into_contiguous(target));
    let mut source = Laid::dense(into_contiguous(source));
    let vector = target.vector.min(source.vector);
    (target.vector, source.vector) = (vector, vector);
    let client = target.tensor.client.clone();
    let (count, dim) = spread(&client, &target);
    let sum = (!may_overwrite(&target.tensor)).then(|| product_of(&target, DType::F32));
    // SAFETY: all are contiguous and of one length, beyond which units do nothing; without `sum`, nobody else holds
    // `target`.
    unsafe {
        let output = sum
            .iter()
            .map(|sum| BufferArg::from_raw_parts(sum.handle.clone(), target.span / vector));
        kernel::blend::launch_unchecked::<S>(
            &client,
            count,
            dim,
            vector,
            target.whole(),
            source.whole(),
            output.collect(),
            keep,
            add,
        );
    }
    debug_assert_eq!(target.tensor.shape(), source.tensor.shape());
    sum.unwrap_or(target.tensor)
}

fn spread(client: &Client, laid: &Laid) -> (CubeCount, CubeDim) {
    let limits = Limits::of(client);
    let vectors = laid.span / laid.vector;
    let cubes = vectors.div_ceil(limits.units as usize * VECTORS_PER_UNIT);
    let count = CubeCount::Static(cubes.clamp(1, limits.cubes) as u32, 1, 1);
    (count, CubeDim::new_1d(limits.units))
}

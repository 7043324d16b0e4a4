use burn::{
    backend::ops::FloatTensorOps,
    tensor::{DType, FloatDType, bf16, f16},
};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{
    elementwise::spread,
    group::{buffer, dense},
};
use crate::kernel;

/// Of f16, bf16 or f32 to any of them.
pub(super) fn run(tensor: CubeTensor, dtype: FloatDType, factor: f32) -> CubeTensor {
    match tensor.dtype {
        // Burn's multiplication is one launch too, and in place where it may be.
        DType::F32 if dtype == FloatDType::F32 => {
            CubeBackend::float_mul_scalar(tensor, factor.into())
        }
        DType::F16 => from::<f16>(tensor, dtype, factor),
        DType::BF16 => from::<bf16>(tensor, dtype, factor),
        DType::F32 => from::<f32>(tensor, dtype, factor),
        dtype => panic!("gradients are f16, bf16 or f32 here, not {dtype:?}"),
    }
}

fn from<I: Float + CubeElement>(tensor: CubeTensor, dtype: FloatDType, factor: f32) -> CubeTensor {
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
    let tensor = dense(tensor);
    let client = tensor.client.clone();
    let elements = tensor.meta.num_elements();
    let (count, dim, vector) = spread(&client, elements);
    // Values lie in the order in which those of the gradient do.
    let product = CubeTensor::new(
        client.clone(),
        client.empty(elements * size_of::<O>()),
        *tensor.meta.clone(),
        tensor.device.clone(),
        dtype.into(),
    );
    // SAFETY: both are dense, in one order and of one length, beyond which units do nothing.
    unsafe {
        kernel::mul_cast::launch_unchecked::<I, O>(
            &client,
            count,
            dim,
            vector,
            buffer(&tensor, vector),
            buffer(&product, vector),
            factor,
        );
    }
    product
}

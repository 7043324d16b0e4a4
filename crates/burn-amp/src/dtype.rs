//! Which dtype a gradient is worked on in.

use burn::tensor::{DType, FloatDType, Tensor};

/// The dtype of the gradient that the optimizer gets for a parameter of dtype `parameter`.
pub(crate) fn optimizer_dtype(parameter: DType, in_own_dtype: bool) -> FloatDType {
    match in_own_dtype && is_half(parameter) {
        true => parameter.into(),
        false => working_dtype(parameter),
    }
}

/// The dtype in which a gradient for a parameter of this dtype is unscaled.
pub(crate) fn working_dtype(parameter: DType) -> FloatDType {
    match parameter {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Runs `change` on a gradient, which keeps its dtype. f16 and bf16 are widened to f32 for it: a scalar would be rounded to
/// the tensor's dtype, where 1e-8 is zero and 1/60000 off by 0.14 %.
pub(crate) fn widened<const D: usize>(
    grad: Tensor<D>,
    change: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let dtype = grad.dtype();
    match is_half(dtype) {
        true => change(grad.cast(FloatDType::F32)).cast(dtype),
        false => change(grad),
    }
}

//! The dtypes in which gradients are worked on.

use burn::tensor::{DType, FloatDType};

/// The dtype of the gradient that the optimizer gets for a parameter of dtype `parameter`.
pub(crate) fn optimizer_dtype(parameter: DType, in_own_dtype: bool) -> FloatDType {
    match in_own_dtype && is_half(parameter) {
        true => parameter.into(),
        false => working_dtype(parameter),
    }
}

/// The dtype in which a gradient for a parameter of this dtype is unscaled.
pub fn working_dtype(parameter: DType) -> FloatDType {
    match parameter {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// f16 or bf16.
pub fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

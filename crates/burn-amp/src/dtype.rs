//! Which dtype a gradient is worked on in.

use burn::tensor::{DType, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

/// The dtype in which the optimizer gets the gradients of half-precision parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GradientDType {
    /// f32 for f16, bf16 and f32 parameters, f64 for f64 ones: the default. Nothing is rounded on
    /// the way to the optimizer.
    ///
    /// Burn's own optimizers cannot combine an f32 gradient with an f16 or bf16 parameter; see
    /// [`AmpError::HalfPrecisionParameter`](crate::AmpError::HalfPrecisionParameter).
    #[default]
    Full,
    /// The parameter's own dtype, rounded to nearest after unscaling in f32.
    ///
    /// What the loss scale saved from underflow can be lost again: in f16, unscaled values below
    /// 6e-8 become zero (below 6.1e-5 they lose bits), and values above 65504 become infinite, which
    /// counts as an overflow. PyTorch does this with bf16 parameters, and refuses f16 ones.
    Parameter,
}

impl GradientDType {
    /// The dtype of the gradient that the optimizer gets for a parameter of dtype `parameter`.
    pub(crate) fn for_parameter(self, parameter: DType) -> FloatDType {
        match self {
            Self::Parameter if is_half(parameter) => parameter.into(),
            _ => working_dtype(parameter),
        }
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

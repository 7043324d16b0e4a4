use burn::tensor::{FloatDType, Tensor};

use super::is_half;

/// Runs `change` on a gradient, which keeps its dtype. A half-precision one is widened for it: a scalar would be rounded to
/// the tensor's dtype, where 1e-8 is zero and 1/60000 off by 0.14 %.
pub(super) fn in_full<const D: usize>(
    grad: Tensor<D>,
    change: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let dtype = grad.dtype();
    match is_half(dtype) {
        true => change(grad.cast(FloatDType::F32)).cast(dtype),
        false => change(grad),
    }
}

use burn::tensor::{Bool, FloatDType, Int, Tensor};

use crate::gradients::is_half;

/// A value whose float tensors can be cast together: an input, or a whole batch.
///
/// Implemented for tensors (integers and booleans stay as they are) and for `Option`, `Vec`, arrays and
/// tuples. A batch type of one's own casts its fields:
///
/// ```
/// use burn::tensor::{FloatDType, Int, Tensor};
/// use burn_amp::CastFloat;
///
/// struct Batch {
///     images: Tensor<3>,
///     targets: Tensor<1, Int>,
/// }
///
/// impl CastFloat for Batch {
///     fn cast_float(self, dtype: FloatDType) -> Self {
///         Self { images: self.images.cast_float(dtype), ..self }
///     }
/// }
/// ```
pub trait CastFloat {
    /// Returns the same value with its float tensors in `dtype`. Does not wait for the device.
    fn cast_float(self, dtype: FloatDType) -> Self;
}

impl<const D: usize> CastFloat for Tensor<D> {
    fn cast_float(self, dtype: FloatDType) -> Self {
        self.cast(dtype)
    }
}

impl<const D: usize> CastFloat for Tensor<D, Int> {
    fn cast_float(self, _dtype: FloatDType) -> Self {
        self
    }
}

impl<const D: usize> CastFloat for Tensor<D, Bool> {
    fn cast_float(self, _dtype: FloatDType) -> Self {
        self
    }
}

impl<T: CastFloat> CastFloat for Option<T> {
    fn cast_float(self, dtype: FloatDType) -> Self {
        self.map(|value| value.cast_float(dtype))
    }
}

impl<T: CastFloat> CastFloat for Vec<T> {
    fn cast_float(self, dtype: FloatDType) -> Self {
        self.into_iter()
            .map(|value| value.cast_float(dtype))
            .collect()
    }
}

impl<T: CastFloat, const N: usize> CastFloat for [T; N] {
    fn cast_float(self, dtype: FloatDType) -> Self {
        self.map(|value| value.cast_float(dtype))
    }
}

macro_rules! cast_float_tuple {
    ($($name:ident),+) => {
        impl<$($name: CastFloat),+> CastFloat for ($($name,)+) {
            #[allow(non_snake_case)]
            fn cast_float(self, dtype: FloatDType) -> Self {
                let ($($name,)+) = self;
                ($($name.cast_float(dtype),)+)
            }
        }
    };
}

cast_float_tuple!(A);
cast_float_tuple!(A, B);
cast_float_tuple!(A, B, C);
cast_float_tuple!(A, B, C, D);
cast_float_tuple!(A, B, C, D, E);
cast_float_tuple!(A, B, C, D, E, F);

/// Runs one part of a half-precision model in f32: a norm, a softmax, a loss.
///
/// The input is widened to f32 (f32 and f64 stay as they are), and the output comes back in the dtype in which the
/// input came. If the part has parameters, [`MixedPrecision::keep`](super::MixedPrecision::keep) them in f32. Does
/// not wait for the device.
///
/// BatchNorm needs it, because its running statistics are f32 and Burn refuses to combine them with f16:
///
/// ```
/// use burn::{
///     module::{Module, ParamGroup}, nn::{BatchNorm, BatchNormConfig, conv::{Conv2d, Conv2dConfig}},
///     tensor::{DType, Device, Tensor},
/// };
/// use burn_amp::{MixedPrecision, in_f32};
///
/// #[derive(Module, Debug)]
/// struct Block {
///     conv: Conv2d,
///     norm: BatchNorm,
/// }
///
/// impl Block {
///     fn forward(&self, input: Tensor<4>) -> Tensor<4> {
///         in_f32(self.conv.forward(input), |x| self.norm.forward(x))
///     }
/// }
///
/// let device = Device::flex().autodiff();
/// let block = Block {
///     conv: Conv2dConfig::new([1, 2], [3, 3]).init(&device),
///     norm: BatchNormConfig::new(2).init(&device),
/// };
/// let precision = MixedPrecision::f16().keep(ParamGroup::from_predicate("norm"));
/// let block = block.apply_reparameterization(precision.clone());
///
/// let output = block.forward(precision.cast(Tensor::ones([1, 1, 8, 8], &device)));
/// assert_eq!(output.dtype(), DType::F16);
/// ```
pub fn in_f32<const D: usize, const D2: usize>(
    input: Tensor<D>,
    part: impl FnOnce(Tensor<D>) -> Tensor<D2>,
) -> Tensor<D2> {
    match input.dtype() {
        dtype if is_half(dtype) => part(input.cast(FloatDType::F32)).cast(dtype),
        _ => part(input),
    }
}

//! Values whose float tensors are cast together. Knows no scopes.

use burn::nn::attention::MhaOutput;
use burn::nn::{LstmState, RnnState};
use burn::tensor::{Bool, DType, FloatDType, Int, Tensor};

use crate::values::AnyTensor;

/// A value whose float tensors can be cast together: what goes into [`autocast`](crate::MixedPrecision::autocast) and
/// [`in_f32`](crate::in_f32), and what comes out. Or losses that [`Scaler::scale`](crate::Scaler::scale) multiplies;
/// numbers stay as they are there too.
///
/// Implemented for tensors (integers and booleans stay as they are), for numbers, for `Option`, `Result`, `Box`, `Vec`, arrays and tuples,
/// and for what Burn's recurrent and attention layers return. [`cast_fields!`](crate::cast_fields) implements it for a batch of your
/// own in one line. Burn's `MhaInput` and `TransformerEncoderInput` keep their tensors private: build them inside.
#[diagnostic::on_unimplemented(
    message = "`autocast`, `in_f32`, `cast` and `scale` do not know how to find the tensors of `{Self}`",
    label = "its float tensors cannot be found",
    note = "pass the tensors themselves, a tuple or a `Vec` of them, and build `{Self}` inside",
    note = "or name its float fields once: `burn_amp::cast_fields!({Self} {{ images, weights }});`"
)]
pub trait CastFloat {
    /// Returns the same value with its float tensors cast by [`Cast::apply`]. Does not wait for the device.
    fn cast_float(self, cast: &Cast<'_>) -> Self;
}

/// Implements [`CastFloat`] for a structure, which may have a rank: its named fields are cast, the others stay.
///
/// ```
/// use burn::tensor::{Int, Tensor};
///
/// struct Batch {
///     images: Tensor<3>,
///     targets: Tensor<1, Int>,
/// }
///
/// burn_amp::cast_fields!(Batch { images });
///
/// struct Sequence<const D: usize> {
///     values: Tensor<D>,
/// }
///
/// burn_amp::cast_fields!(Sequence<const D: usize> { values });
/// ```
#[macro_export]
macro_rules! cast_fields {
    ($name:ident $(<const $rank:ident: usize>)? { $($field:ident),* $(,)? }) => {
        impl $(<const $rank: usize>)? $crate::CastFloat for $name $(<$rank>)? {
            fn cast_float(mut self, cast: &$crate::macros::Cast<'_>) -> Self {
                $(self.$field = $crate::CastFloat::cast_float(self.$field, cast);)*
                self
            }
        }
    };
}

impl<const D: usize> CastFloat for Tensor<D> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        cast.apply(self)
    }
}

impl<T: CastFloat> CastFloat for Option<T> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        self.map(|value| value.cast_float(cast))
    }
}

impl<T: CastFloat> CastFloat for Vec<T> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        let values = self.into_iter();
        values.map(|value| value.cast_float(cast)).collect()
    }
}

cast_fields!(MhaOutput { weights, context });
cast_fields!(LstmState<const D: usize> { cell, hidden });
cast_fields!(RnnState<const D: usize> { hidden });

impl<const D: usize> CastFloat for Tensor<D, Int> {
    fn cast_float(self, _cast: &Cast<'_>) -> Self {
        self
    }
}

impl<const D: usize> CastFloat for Tensor<D, Bool> {
    fn cast_float(self, _cast: &Cast<'_>) -> Self {
        self
    }
}

/// Implements [`CastFloat`] for types without float tensors.
macro_rules! stays {
    ($($type:ty),* $(,)?) => {
        $(impl CastFloat for $type {
            fn cast_float(self, _cast: &Cast<'_>) -> Self {
                self
            }
        })*
    };
}

stays!((), bool, u8, u32, u64, usize, i32, i64, f32, f64, String);

impl<T: CastFloat> CastFloat for Box<T> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        Box::new((*self).cast_float(cast))
    }
}

impl<T: CastFloat, E> CastFloat for Result<T, E> {
    fn cast_float(self, cast: &Cast<'_>) -> Self {
        self.map(|value| value.cast_float(cast))
    }
}

/// Implements a trait whose method walks through a value, to give it back, for arrays and tuples of such values.
#[doc(hidden)]
#[macro_export]
macro_rules! walk_arrays_and_tuples {
    ($trait:ident, $method:ident, $walk:ty) => {
        impl<T: $trait, const N: usize> $trait for [T; N] {
            fn $method(self, walk: $walk) -> Self {
                self.map(|value| value.$method(walk))
            }
        }
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A);
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A, B);
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A, B, C);
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A, B, C, D);
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A, B, C, D, E);
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A, B, C, D, E, F);
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A, B, C, D, E, F, G);
        $crate::walk_arrays_and_tuples!(@ $trait, $method, $walk, A, B, C, D, E, F, G, H);
    };
    (@ $trait:ident, $method:ident, $walk:ty, $($name:ident),+) => {
        impl<$($name: $trait),+> $trait for ($($name,)+) {
            #[allow(non_snake_case)]
            fn $method(self, walk: $walk) -> Self {
                let ($($name,)+) = self;
                ($($name.$method(walk),)+)
            }
        }
    };
}

walk_arrays_and_tuples!(CastFloat, cast_float, &Cast<'_>);

/// The change of a value's float tensors: they are cast, each by its dtype, or multiplied by the loss scale. See
/// [`CastFloat`].
///
/// Needed only to implement [`CastFloat`] for a structure of your own.
pub struct Cast<'a>(&'a dyn Fn(AnyTensor) -> AnyTensor);

impl Cast<'_> {
    /// Casts one tensor of any rank. f64 and quantized tensors stay as they are. Does not wait for the device.
    ///
    /// In [`Scaler::scale`](crate::Scaler::scale) it multiplies the tensor by the loss scale, f64 ones included.
    pub fn apply<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        (self.0)(AnyTensor::with_graph(tensor)).into_handle()
    }
}

impl std::fmt::Debug for Cast<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cast")
    }
}

/// Casts the f16, bf16 and f32 tensors of a value.
pub(super) fn cast_each<T: CastFloat>(value: T, cast: impl Fn(AnyTensor) -> AnyTensor) -> T {
    let cast = |tensor: AnyTensor| match tensor.dtype() {
        DType::F16 | DType::BF16 | DType::F32 => cast(tensor),
        _ => tensor,
    };
    value.cast_float(&Cast(&cast))
}

/// Multiplies all losses of a value by the loss scale, in f32 (in f64 if they are f64).
pub fn multiply_losses<T: CastFloat>(losses: T, scale: f32) -> T {
    let multiply = |loss: AnyTensor| {
        // 65536 is infinite in f16, and so would be most products with it.
        let loss = match loss.dtype() {
            DType::F64 => loss,
            _ => loss.cast(FloatDType::F32),
        };
        loss.map(|loss| loss.mul_scalar(scale))
    };
    losses.cast_float(&Cast(&multiply))
}

use burn::{
    module::{Module, Reparameterization},
    tensor::{FloatDType, Tensor},
};

/// What [`MixedPrecision`](super::MixedPrecision) attaches to a parameter: its value in another dtype.
///
/// The stored parameter, its gradient and its record keep their own dtype; backward casts the gradient back.
#[derive(Module, Debug)]
pub struct CastParameter {
    #[module(skip)]
    dtype: FloatDType,
}

impl CastParameter {
    pub(super) fn new(dtype: FloatDType) -> Self {
        Self { dtype }
    }

    /// The dtype in which the model sees the parameter.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }
}

impl Reparameterization for CastParameter {
    const NAME: &'static str = "mixed_precision";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base.cast(self.dtype)
    }
}

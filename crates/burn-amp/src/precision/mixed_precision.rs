use burn::{
    module::{Param, Reparameterizer},
    tensor::{FloatDType, Tensor},
};

use super::CastParameter;

/// Makes a model compute in half precision over f32 parameters.
///
/// A Burn [`Reparameterizer`]: `model.apply_reparameterization(MixedPrecision::f16())` makes every float parameter
/// appear in f16 wherever the model uses it, while the stored parameter, its gradient, the optimizer's state and
/// the record stay f32 ("master weights" in Micikevicius et al., 2018, kept where they always were).
///
/// Inputs must be cast too ([`cast`](Self::cast)): Burn refuses to combine f16 with f32. Reduce the loss in
/// f32. It cannot be attached to a model that already has a reparameterization (LoRA): Burn allows one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixedPrecision {
    dtype: FloatDType,
}

impl MixedPrecision {
    /// Compute in f16: 11 significant bits, 6e-8 to 65504. Needs loss scaling.
    pub fn f16() -> Self {
        Self::new(FloatDType::F16)
    }

    /// Compute in bf16: 8 significant bits, the range of f32. Needs no loss scaling as a rule.
    pub fn bf16() -> Self {
        Self::new(FloatDType::BF16)
    }

    /// Compute in `dtype`. [`FloatDType::F32`] leaves an f32 model as it is.
    pub fn new(dtype: FloatDType) -> Self {
        Self { dtype }
    }

    /// The dtype in which the model computes.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Casts an input to the dtype in which the model computes. Does not wait for the device.
    pub fn cast<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        input.cast(self.dtype)
    }
}

impl Reparameterizer for MixedPrecision {
    type Reparam = CastParameter;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Self::Reparam>) {
        (param, Some(CastParameter::new(self.dtype)))
    }
}

use burn::{
    module::{Param, ParamGroup, Reparameterizer},
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp_kernels::UnsupportedDType;
use std::sync::Once;

use super::{CastFloat, CastParameter};
use crate::error::AmpError;

/// Makes a model compute in half precision over f32 parameters.
///
/// A Burn [`Reparameterizer`]: `model.apply_reparameterization(MixedPrecision::f16())` makes every float parameter
/// appear in f16 wherever the model uses it, while the stored parameter, its gradient, the optimizer's state and
/// the record stay f32 ("master weights" in Micikevicius et al., 2018, kept where they always were).
///
/// Attaching it panics on a device that has no such dtype, with the message of [`check_device`](Self::check_device).
///
/// Inputs must be cast too, with [`cast`](Self::cast) or [`autocast`](Self::autocast): Burn panics when f16 meets f32.
/// Reduce the loss in f32. `Module::materialize` would bake the f16 values in; do not call it on a model in
/// training. It cannot be attached to a model that already has a reparameterization (LoRA): Burn allows one.
///
/// Layers that create f32 tensors of their own (BatchNorm, Lstm, Gru and other recurrent ones, positional encodings) are run as
/// f32 islands: [`keep`](Self::keep) their parameters and call them [`in_f32`](super::in_f32).
#[derive(Clone, Debug)]
pub struct MixedPrecision {
    dtype: FloatDType,
    keep: Vec<ParamGroup>,
}

impl MixedPrecision {
    /// Compute in f16: 11 significant bits, 6e-8 to 65504. Needs loss scaling.
    pub fn f16() -> Self {
        Self::new(FloatDType::F16)
    }

    /// Compute in bf16: 8 significant bits, the range of f32.
    ///
    /// Loss scaling is usually unnecessary (the log says so once), and does no harm: leave it out with
    /// [`GradScalerConfig::with_enabled`](crate::GradScalerConfig::with_enabled).
    pub fn bf16() -> Self {
        Self::new(FloatDType::BF16)
    }

    /// Compute in `dtype`. [`FloatDType::F32`] leaves an f32 model as it is.
    pub fn new(dtype: FloatDType) -> Self {
        static SAID: Once = Once::new();
        if dtype == FloatDType::BF16 {
            SAID.call_once(|| {
                log::info!(
                    "bf16 has the range of f32: loss scaling is usually unnecessary \
                     (`GradScalerConfig::with_enabled(false)`)"
                );
            });
        }
        Self {
            dtype,
            keep: Vec::new(),
        }
    }

    /// Leaves the parameters of a group in f32. Can be called several times.
    ///
    /// What computes with them must get f32 inputs: see [`in_f32`](super::in_f32).
    pub fn keep(mut self, group: ParamGroup) -> Self {
        self.keep.push(group);
        self
    }

    /// The dtype in which the model computes.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Casts the float tensors of an input or a batch to the dtype in which the model computes.
    ///
    /// Does not wait for the device.
    pub fn cast<T: CastFloat>(&self, input: T) -> T {
        input.cast_float(self.dtype)
    }

    /// Runs the model on an input of any float dtype: casts the input, and the output back to f32.
    ///
    /// As `torch.autocast` around a forward pass. Does not wait for the device.
    ///
    /// ```
    /// use burn::{module::Module, nn::LinearConfig, tensor::{DType, Device, Tensor}};
    /// use burn_amp::MixedPrecision;
    ///
    /// let device = Device::flex();
    /// let f16 = MixedPrecision::f16();
    /// let model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(f16.clone());
    /// let logits = f16.autocast(Tensor::<2>::ones([1, 4], &device), |x| model.forward(x));
    /// assert_eq!(logits.dtype(), DType::F32);
    /// ```
    pub fn autocast<I: CastFloat, R: CastFloat>(
        &self,
        input: I,
        forward: impl FnOnce(I) -> R,
    ) -> R {
        forward(self.cast(input)).cast_float(FloatDType::F32)
    }

    /// Checks that an input has the dtype in which the model computes.
    ///
    /// For a `forward` that would rather return an error than let Burn panic.
    ///
    /// # Errors
    ///
    /// [`AmpError::InputDType`], which says what to cast.
    pub fn check<const D: usize>(&self, name: &str, input: &Tensor<D>) -> Result<(), AmpError> {
        if input.dtype() == DType::from(self.dtype) {
            return Ok(());
        }
        Err(AmpError::InputDType {
            input: name.to_string(),
            found: input.dtype(),
            expected: self.dtype.into(),
        })
    }

    /// Checks that a device can compute in this dtype: WGSL has no bf16, and f16 on devices with `shader-f16`.
    ///
    /// Call it before the model is reparameterized, which panics where this returns an error.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use burn_amp::MixedPrecision;
    ///
    /// MixedPrecision::f16().check_device(&Device::flex())?;
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`], which names the device and the dtypes that it has.
    pub fn check_device(&self, device: &Device) -> Result<(), AmpError> {
        let dtype = DType::from(self.dtype);
        match device.supports_dtype(dtype) {
            true => Ok(()),
            false => Err(UnsupportedDType::new(device, dtype).into()),
        }
    }
}

impl Reparameterizer for MixedPrecision {
    type Reparam = CastParameter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Self::Reparam>) {
        let kept = self
            .keep
            .iter()
            .any(|group| group.matches(&param.id, Some(path)));
        if !kept {
            // The first forward pass would end in a panic of a kernel's compiler.
            self.check_device(&param.lazy_device())
                .unwrap_or_else(|error| panic!("{error}"));
        }
        let cast = (!kept).then(|| CastParameter::new(self.dtype));
        (param, cast)
    }
}

use burn::module::{Module, ParamGroup};
use burn::tensor::{DType, FloatDType};

use burn_amp_core::internal::{is_half, replaced};
use burn_amp_core::warn;

/// Turns the float parameters of a model into half precision, those of the groups in `keep` excepted.
///
/// Half the memory of [`MixedPrecision`](burn_amp_core::MixedPrecision), which keeps f32 parameters; train it with
/// [`MasterWeights`](crate::MasterWeights). Parameter ids, trainability and devices stay. BatchNorm's running statistics
/// are parameters to this too, shared with every clone of the model: keep them, and run the layer [`in_f32`](burn_amp_core::in_f32).
/// Values above 65504 become infinite in f16.
///
/// Burn's `load_record` gives a parameter the dtype of the *record*: load first and convert then, or set the record's
/// `DTypePolicy::CastToModule`.
///
/// `dtype` is meant to be f16 or bf16; the parameters get any other float dtype as well. Does not wait for the device.
///
/// # Panics
///
/// As Burn's `cast` where the device lacks the dtype: [`MixedPrecision::check_device`](burn_amp_core::MixedPrecision::check_device)
/// asks first.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, tensor::{DType, Device, FloatDType}};
/// use burn_amp::torch::{to_full, to_half};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).init(&device);
/// let half = to_half(model, FloatDType::F16, &[]);
/// assert_eq!(half.weight.val().dtype(), DType::F16);
/// assert_eq!(to_full(half).weight.val().dtype(), DType::F32);
/// ```
pub fn to_half<M: Module>(module: M, dtype: FloatDType, keep: &[ParamGroup]) -> M {
    let mut matched = vec![false; keep.len()];
    let module = replaced(module, |_, parameter| {
        let parameter = parameter();
        let mut is_kept = false;
        for (group, matched) in keep.iter().zip(&mut matched) {
            let matches = group.matches(&parameter.id, Some(&parameter.path));
            *matched |= matches;
            is_kept |= matches;
        }
        (!is_kept).then(|| parameter.value.cast(dtype))
    });
    for (index, _) in (matched.iter().enumerate()).filter(|(_, matched)| !**matched) {
        warn!("group {index} of `keep` matches no parameter: nothing is kept for it");
    }
    module
}

/// Turns the f16, bf16 and Flex32 parameters of a model into f32, to save it or to go on in f32. Others stay.
///
/// The values are those of the half-precision parameters: a [`MasterWeights`](crate::MasterWeights) optimizer knows more
/// digits of them, which its record keeps. Does not wait for the device.
pub fn to_full<M: Module>(module: M) -> M {
    replaced(module, |_, parameter| {
        let value = parameter().value;
        let is_narrow = is_half(value.dtype()) || value.dtype() == DType::Flex32;
        is_narrow.then(|| value.cast(FloatDType::F32))
    })
}

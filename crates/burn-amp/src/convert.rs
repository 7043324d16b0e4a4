use burn::{
    module::{Module, Param, ParamGroup, ParamId},
    tensor::{DType, FloatDType, Tensor},
};

use crate::{
    dtype::is_half,
    module_path::{self, ModulePath},
};

/// Turns the float parameters of a model into half precision, those of the groups in `keep` excepted.
///
/// Half the memory of [`MixedPrecision`](crate::MixedPrecision), which keeps f32 parameters; train it with
/// [`MasterWeights`](crate::MasterWeights). Parameter ids, trainability and devices stay. BatchNorm's running statistics
/// are parameters to this too, shared with every clone of the model: keep them, and run the layer [`in_f32`](crate::in_f32).
/// Values above 65504 become infinite in f16.
///
/// Burn's `load_record` gives a parameter the dtype of the *record*: load first and convert then, or set the record's
/// `DTypePolicy::CastToModule`.
///
/// `dtype` is meant to be f16 or bf16; the parameters get any other float dtype as well. Does not wait for the device.
///
/// # Panics
///
/// As Burn's `cast` where the device lacks the dtype: [`MixedPrecision::check_device`](crate::MixedPrecision::check_device)
/// asks first.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, tensor::{DType, Device, FloatDType}};
/// use burn_amp::{to_full, to_half};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).init(&device);
/// let half = to_half(model, FloatDType::F16, &[]);
/// assert_eq!(half.weight.val().dtype(), DType::F16);
/// assert_eq!(to_full(half).weight.val().dtype(), DType::F32);
/// ```
pub fn to_half<M: Module>(module: M, dtype: FloatDType, keep: &[ParamGroup]) -> M {
    let mut convert = Convert {
        dtype,
        select: Select::AllBut(keep),
        matched: vec![false; keep.len()],
    };
    let module = module_path::map(module, &mut convert);
    for (index, _) in convert
        .matched
        .iter()
        .enumerate()
        .filter(|(_, matched)| !**matched)
    {
        log::warn!("group {index} of `keep` matches no parameter: nothing is kept for it");
    }
    module
}

/// Turns the f16, bf16 and Flex32 parameters of a model into f32, to save it or to go on in f32. Others stay.
///
/// The values are those of the half-precision parameters: a [`MasterWeights`](crate::MasterWeights) optimizer knows more
/// digits of them, which its record keeps. Does not wait for the device.
pub fn to_full<M: Module>(module: M) -> M {
    let mut convert = Convert {
        dtype: FloatDType::F32,
        select: Select::Half,
        matched: Vec::new(),
    };
    module_path::map(module, &mut convert)
}

enum Select<'a> {
    AllBut(&'a [ParamGroup]),
    Half,
}

struct Convert<'a> {
    dtype: FloatDType,
    select: Select<'a>,
    /// Which groups of `keep` have matched a parameter.
    matched: Vec<bool>,
}

impl module_path::Map for Convert<'_> {
    fn parameter<const D: usize>(
        &mut self,
        path: &ModulePath,
        param: Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        let selected = match self.select {
            Select::AllBut(keep) => {
                let path = path.join();
                let mut kept = false;
                for (group, matched) in keep.iter().zip(&mut self.matched) {
                    let matches = group.matches(&param.id, Some(&path));
                    *matched |= matches;
                    kept |= matches;
                }
                !kept
            }
            Select::Half => {
                let dtype = param.base().dtype();
                is_half(dtype) || dtype == DType::Flex32
            }
        };
        if !selected {
            return param;
        }
        let id = param.id;
        param.map(|tensor| {
            let cast = tensor.clone().inner().cast(self.dtype);
            replace_value(tensor, cast, id)
        })
    }
}

/// Puts a new value in the place of a parameter's: a with all that the old one carried for autodiff.
pub(crate) fn replace_value<const D: usize>(
    old: Tensor<D>,
    new: Tensor<D>,
    id: ParamId,
) -> Tensor<D> {
    let require_grad = old.is_require_grad();
    let checkpointing = old.gradient_checkpointing_strategy();
    let distributed = old.is_autodiff() && old.is_distributed();
    let mut leaf = new;
    if let Some(strategy) = checkpointing {
        leaf = Tensor::from_inner(leaf).with_gradient_checkpointing_strategy(strategy);
    }
    if require_grad {
        leaf = leaf.require_grad();
    }
    if distributed {
        leaf = leaf.set_distributed(id);
    }
    leaf
}

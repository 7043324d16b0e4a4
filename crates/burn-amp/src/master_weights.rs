use burn::{
    grad_clipping::GradientClipping,
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ParamGroup, ParamId},
    optim::{
        GradientsParams, LearningRate, ModuleOptimizer, Optimizer, OptimizerRecord, RecordState,
        StateSink, StateSource, join_path,
    },
    tensor::{DType, Device, FloatDType, Tensor, TensorData},
};

use std::cell::RefCell;

use crate::{
    dtype::is_half,
    error::AmpError,
    module_optim::{ModuleOptim, records_of},
    param_tensors::ParamTensors,
};

pub(crate) const MASTER: &str = "master";
pub(crate) const INNER: &str = "inner";

/// An optimizer for f16 and bf16 parameters that keeps an f32 copy of each, and its inner state in f32.
///
/// Updates below half a unit in the last place of a half-precision parameter are lost if they are added to it one
/// by one; here they add up in the master copy, of which the parameter is the rounded image (Micikevicius et al.,
/// "Mixed Precision Training", 2018; Apex's O2, DeepSpeed's `FP16_Optimizer`). Gradients may come in f32 or in half
/// precision. f32 and f64 parameters go straight to the inner optimizer.
///
/// A parameter that was changed elsewhere since the last step (loaded, averaged, edited) is noticed element by
/// element, on the device, and its new value replaces the master's.
///
/// Memory for each half-precision value: 2 bytes of parameter, 4 of master, and the inner state in f32.
/// ```
/// use burn::{
///     module::Module, nn::LinearConfig, optim::AdamConfig,
///     tensor::{DType, Device, Distribution, FloatDType, Tensor},
/// };
/// use burn_amp::{GradScalerConfig, MasterWeights, ScaledOptimizer, to_half};
///
/// let device = Device::flex().autodiff();
/// let mut model = to_half(LinearConfig::new(4, 2).init(&device), FloatDType::F16, &[]);
/// let optim = MasterWeights::new(AdamConfig::new().build());
/// let mut optim = ScaledOptimizer::new(optim, GradScalerConfig::new().init()?);
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device).cast(FloatDType::F16);
/// let loss = model.forward(input).cast(FloatDType::F32).square().mean();
/// let grads = optim.backward(loss, &model);
/// model = optim.step(1e-3, model, grads);
/// assert_eq!(model.weight.val().dtype(), DType::F16);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone)]
pub struct MasterWeights {
    optim: ModuleOptimizer,
}

impl MasterWeights {
    /// Keeps f32 masters for one of Burn's optimizers: what `AdamConfig::build` returns.
    pub fn new<O: Optimizer>(optim: O) -> Self {
        Self {
            optim: ModuleOptimizer::from(Masters(optim)),
        }
    }

    /// Steps the parameters of `group` with another optimizer, which keeps master weights too; see
    /// [`ModuleOptimizer::with_group`].
    pub fn with_group<O: Optimizer>(
        mut self,
        group: ParamGroup,
        optim: O,
        grad_clipping: Option<GradientClipping>,
    ) -> Self {
        self.optim = self.optim.with_group(group, Masters(optim), grad_clipping);
        self
    }

    /// Clips the gradients of the first group; see [`ModuleOptimizer::with_grad_clipping`].
    pub fn with_grad_clipping(mut self, clipping: GradientClipping) -> Self {
        self.optim = self.optim.with_grad_clipping(clipping);
        self
    }

    /// Steps the parameters without loss scaling; see [`ModuleOptimizer::step`].
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> M {
        self.optim.step(lr, module, grads)
    }

    /// Burn's optimizer, its masters in its state.
    pub fn into_inner(self) -> ModuleOptimizer {
        self.optim
    }
}

impl From<MasterWeights> for ModuleOptimizer {
    fn from(optim: MasterWeights) -> Self {
        optim.into_inner()
    }
}

impl std::fmt::Debug for MasterWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MasterWeights").finish_non_exhaustive()
    }
}

impl ModuleOptim for MasterWeights {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.optim.step(lr, module, grads)
    }

    fn accepts(&self, _parameter: DType, _gradient: DType) -> bool {
        true
    }

    records_of!(self => self.optim);

    fn masters(&self) -> ParamTensors {
        masters_of(&self.optim)
    }
}

thread_local! {
    /// Where records are to leave the masters: Burn shows an optimizer's state to nothing else.
    static MASTERS: RefCell<Option<ParamTensors>> = const { RefCell::new(None) };
}

/// Handles to the masters in an optimizer; empty if it keeps none. Does not wait for the device.
pub(crate) fn masters_of(optim: &ModuleOptimizer) -> ParamTensors {
    MASTERS.set(Some(ParamTensors::default()));
    drop(optim.to_record());
    MASTERS.take().unwrap_or_default()
}

/// Whether a state is flattened for its master alone, which `put` leaves there.
pub(crate) fn masters_asked(prefix: &str, put: impl FnOnce(&mut ParamTensors, ParamId)) -> bool {
    MASTERS.with_borrow_mut(|masters| {
        if let (Some(masters), Ok(id)) = (masters.as_mut(), prefix.parse::<u64>()) {
            put(masters, id.into());
        }
        masters.is_some()
    })
}

/// Values of their own. CubeCL reads when the values are looked at, and on the CPU where they lie: the next step, in place, would be in
/// the record.
pub(crate) fn owned(data: &TensorData) -> TensorData {
    let bytes = data.as_bytes().to_vec();
    TensorData::from_bytes_vec(bytes, data.shape().clone(), data.dtype())
}

/// The optimizer of single parameters inside.
#[derive(Clone)]
struct Masters<O>(O);

/// What is kept for a parameter of rank `D`.
#[derive(Clone)]
struct Kept<O: Optimizer, const D: usize> {
    /// The f32 copy; none for a parameter that is not in half precision.
    master: Option<Tensor<D>>,
    inner: Option<O::State<D>>,
    /// Whether it was loaded from a record of Burn's layout, without `inner`, and not used since.
    plain: bool,
}

impl<O: Optimizer, const D: usize> RecordState for Kept<O, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        let asked = masters_asked(prefix, |masters, id| {
            if let Some(master) = &self.master {
                masters.insert(id, master.clone());
            }
        });
        if asked {
            return;
        }
        if let Some(master) = &self.master {
            out.push_tensor(prefix, MASTER, master.to_data());
        }
        if let Some(inner) = &self.inner {
            match self.plain {
                true => inner.state_flatten(prefix, out),
                false => inner.state_flatten(&join_path(prefix, INNER), out),
            }
        }
        for (_, data) in &mut out.tensors {
            *data = owned(data);
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let master = match src.take_tensor(prefix, MASTER) {
            Some(data) if data.dtype() == DType::F32 && data.rank() == D => {
                Some(Tensor::from_data(data, (device, DType::F32)))
            }
            // No release has saved it: the next step would panic.
            Some(_) => return None,
            None => None,
        };
        let wrapped = join_path(prefix, INNER);
        // Not asked where there is a master: the source looks through the states of all parameters for that.
        let plain = master.is_none() && !src.has_under(&wrapped);
        let prefix = if plain { prefix } else { &wrapped };
        let inner = O::State::<D>::state_unflatten(prefix, src, device);
        (master.is_some() || inner.is_some()).then_some(Self {
            master,
            inner,
            plain,
        })
    }
}

impl<O: Optimizer> Optimizer for Masters<O> {
    type State<const D: usize> = Kept<O, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let dtype = tensor.dtype();
        let (master, inner) = match state {
            Some(state) => (state.master, state.inner),
            None => (None, None),
        };
        if !is_half(dtype) {
            let (tensor, inner) = self.0.step(lr, tensor, grad.cast(dtype), inner);
            let state = inner.map(|inner| Kept {
                master: None,
                inner: Some(inner),
                plain: false,
            });
            return (tensor, state);
        }
        let master = match master {
            Some(master) => follow(master, tensor, dtype),
            None => tensor.cast(FloatDType::F32),
        };
        let grad = grad.cast(FloatDType::F32);
        let (master, inner) = self.0.step(lr, master, grad, inner);
        let tensor = master.clone().cast(dtype);
        let kept = Kept {
            master: Some(master),
            inner,
            plain: false,
        };
        (tensor, Some(kept))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        Kept {
            master: state.master.map(|master| master.to_device(device)),
            inner: state.inner.map(|inner| O::to_device(inner, device)),
            plain: state.plain,
        }
    }
}

/// The master, except where the parameter is no longer its rounded image: there, the parameter.
pub(crate) fn follow<const D: usize>(
    master: Tensor<D>,
    tensor: Tensor<D>,
    dtype: DType,
) -> Tensor<D> {
    let changed = master.clone().cast(dtype).not_equal(tensor.clone());
    master.mask_where(changed, tensor.cast(FloatDType::F32))
}

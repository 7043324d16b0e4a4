use burn::module::{Module, ParamGroup};
use burn::optim::{GradientsParams, ModuleOptimizer, Optimizer};
use burn::{
    grad_clipping::GradientClipping, lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    tensor::DType,
};

use burn_amp_core::internal::{ParamTensors, masters_of};
use burn_amp_core::{ModuleOptim, records_of};

use crate::masters::Masters;

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
/// use burn_amp::{GradScalerConfig, ScaledOptimizer, torch::{GradScaler, MasterWeights, to_half}};
///
/// let device = Device::flex().autodiff();
/// let mut model = to_half(LinearConfig::new(4, 2).init(&device), FloatDType::F16, &[]);
/// let optim = MasterWeights::new(AdamConfig::new().build());
/// let mut optim = ScaledOptimizer::new(optim, GradScaler::new(GradScalerConfig::new())?);
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
        self.optim = (self.optim).with_group(group, Masters(optim), grad_clipping);
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

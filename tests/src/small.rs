//! The smallest model that will do, with optimizers for it.

use crate::{prelude::*, scaled_by_hand};

/// Two parameters with ids that are the same in every run.
#[derive(Module, Debug)]
pub struct Small {
    /// `[1, 3]`.
    pub weight: Param<Tensor<2>>,
    /// `[1]`.
    pub bias: Param<Tensor<1>>,
}

impl Small {
    /// The same values in every run.
    pub fn new(dtype: DType) -> Self {
        let weight = Tensor::from_data([[0.5, -1.0, 0.25]], (&flex(), dtype));
        let bias = Tensor::from_data([2.0], (&flex(), dtype));
        let weight = Param::initialized(ParamId::from(1001), weight.require_grad());
        let bias = Param::initialized(ParamId::from(1002), bias.require_grad());
        Self { weight, bias }
    }

    /// Gradients of a loss that was multiplied by `scale`; infinite if `overflow`.
    pub fn gradients(&self, step: usize, scale: f32, overflow: bool) -> ScaledGradients {
        let device = Device::flex();
        let wave = |index: usize| (1.0 + ((step * 7 + index * 3) % 8) as f32) * 0.125 * scale;
        let last = if overflow { f32::INFINITY } else { wave(3) };
        let mut grads = GradientsParams::new();
        let weight = Tensor::<2>::from_floats([[wave(0), -wave(1), wave(2)]], &device);
        grads.register(self.weight.id, weight);
        grads.register(self.bias.id, Tensor::<1>::from_floats([last], &device));
        let scaler = at_scale(scale.into()).with_dynamic(false);
        scaled_by_hand(&GradScaler::new(scaler).unwrap(), grads)
    }

    /// Steps until `to`; each step of a number in `overflows` overflows.
    pub fn train<O: ModuleOptim>(
        mut self,
        optim: &mut ScaledOptimizer<O>,
        steps: Range<usize>,
        overflows: &[usize],
    ) -> Self {
        for step in steps {
            let scale = optim.scaler().loss_scale();
            let grads = self.gradients(step, scale, overflows.contains(&step));
            self = optim.step(0.1, self, grads);
        }
        self
    }
}

/// The optimizer after the steps of a model that is not needed.
pub fn trained<O: ModuleOptim>(
    mut optim: ScaledOptimizer<O>,
    dtype: DType,
    steps: Range<usize>,
    overflows: &[usize],
) -> ScaledOptimizer<O> {
    Small::new(dtype).train(&mut optim, steps, overflows);
    optim
}

/// Any optimizer, scaled.
pub fn scaled<O: ModuleOptim>(optim: O) -> ScaledOptimizer<O> {
    let scaler = GradScalerConfig::new().with_growth_interval(3);
    ScaledOptimizer::new(optim, GradScaler::new(scaler).unwrap())
}

/// Burn's Adam, scaled.
pub fn adam() -> ScaledOptimizer<ModuleOptimizer> {
    scaled(AdamConfig::new().init())
}

/// Burn's SGD, which has no state.
pub fn sgd() -> ScaledOptimizer<ModuleOptimizer> {
    scaled(SgdConfig::new().init())
}

/// SGD with momentum.
pub fn momentum() -> ScaledOptimizer<ModuleOptimizer> {
    let momentum = Some(MomentumConfig::new());
    scaled(SgdConfig::new().with_momentum(momentum).init())
}

/// Adam around f32 copies of half-precision parameters.
pub fn master_adam() -> ScaledOptimizer<MasterWeights> {
    scaled(MasterWeights::new(AdamConfig::new().build()))
}

/// Our Adam.
pub fn fused_adam() -> ScaledOptimizer<FusedAdam> {
    scaled(FusedAdam::new(AdamConfig::new()))
}

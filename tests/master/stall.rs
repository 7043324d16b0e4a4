//! A regression whose updates are below half an ulp of its f16 parameters: it stalls without masters, and learns with.

use burn::{
    module::{Module, Param},
    optim::{AdamConfig, ModuleOptimizer, SgdConfig},
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::{GradScalerConfig, MasterWeights, ModuleOptim, ScaledOptimizer, to_half};

use crate::bits::parameters;

#[derive(Module, Debug)]
struct Slope {
    weight: Param<Tensor<1>>,
}

impl Slope {
    /// All ones: the next f16 values are 2^-10 above and 2^-11 below.
    fn new(dtype: FloatDType) -> Self {
        let device = Device::flex().autodiff();
        let weight = Param::from_tensor(Tensor::ones([4], &device));
        to_half(Self { weight }, dtype, &[])
    }

    fn loss(&self) -> Tensor<1> {
        let device = Device::flex().autodiff();
        let target = Tensor::<1>::from_floats([1.3, 1.25, 1.2, 1.35], &device);
        let error = self.weight.val() - target.cast(self.weight.val().dtype());
        error.cast(FloatDType::F32).square().sum()
    }
}

/// The loss before and after, and whether a parameter moved at all.
fn train<O: ModuleOptim>(optim: O, dtype: FloatDType, lr: f64, steps: usize) -> (f32, f32, bool) {
    let scaler = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_parameter_dtype_gradients(true);
    let mut optim = ScaledOptimizer::new(optim, scaler.init().unwrap());
    let mut slope = Slope::new(dtype);
    let start = (slope.loss().into_scalar(), parameters(&slope));
    for _ in 0..steps {
        let grads = optim.backward(slope.loss(), &slope);
        slope = optim.step(lr, slope, grads);
    }
    assert_eq!(optim.scaler().counters().stepped(), steps as u64);
    assert_eq!(slope.weight.val().dtype(), DType::from(dtype));
    let end = (slope.loss().into_scalar(), parameters(&slope));
    (start.0, end.0, start.1 != end.1)
}

fn check(
    bare: impl Fn() -> ModuleOptimizer,
    masters: impl ModuleOptim,
    dtype: FloatDType,
    lr: f64,
    steps: usize,
) {
    let (start, stalled, moved) = train(bare(), dtype, lr, 50);
    assert!(!moved, "the bare optimizer moves: no test of anything");
    assert_eq!(start, stalled);
    let (start, learnt, _) = train(masters, dtype, lr, steps);
    assert!(learnt < 0.02 * start, "from {start} to {learnt}");
}

#[test]
fn sgd_in_f16() {
    let config = SgdConfig::new();
    let masters = MasterWeights::new(config.build());
    // At most 0.7 a gradient: updates of 4.2e-4, where half an ulp is 4.9e-4.
    check(|| config.init(), masters, FloatDType::F16, 6e-4, 2000);
}

#[test]
fn adam_in_f16() {
    let config = AdamConfig::new();
    let masters = MasterWeights::new(config.build());
    check(|| config.init(), masters, FloatDType::F16, 4e-4, 1200);
}

#[test]
fn sgd_in_bf16() {
    let config = SgdConfig::new();
    let masters = MasterWeights::new(config.build());
    // Half an ulp of bf16 is 2^-8 above 1.
    check(|| config.init(), masters, FloatDType::BF16, 5e-3, 400);
}

//! A regression whose updates are below half an ulp of its f16 parameters: it stalls without masters, and learns with.

use burn_amp_tests::prelude::*;

use burn_amp_tests::parameters;

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

#[test]
fn it_stalls_without_masters_and_learns_with() {
    fn check<O: Optimizer>(optim: O, dtype: FloatDType, lr: f64, steps: usize) {
        let bare = ModuleOptimizer::from(optim.clone());
        let (start, stalled, moved) = train(bare, dtype, lr, 50);
        assert!(!moved, "the bare optimizer moves: no test of anything");
        assert_eq!(start, stalled);
        let (start, learnt, _) = train(MasterWeights::new(optim), dtype, lr, steps);
        assert!(learnt < 0.02 * start, "{dtype:?}: from {start} to {learnt}");
    }
    let (f16, bf16) = (FloatDType::F16, FloatDType::BF16);
    // At most 0.7 a gradient: updates of 4.2e-4, where half an ulp is 4.9e-4.
    check(SgdConfig::new().build(), f16, 6e-4, 2000);
    check(AdamConfig::new().build(), f16, 4e-4, 1200);
    // Half an ulp of bf16 is 2^-8 above 1.
    check(SgdConfig::new().build(), bf16, 5e-3, 400);
}

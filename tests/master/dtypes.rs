//! Gradients and parameters of every float dtype.

use super::support::*;

/// The same values, wide or narrow, make the same step.
#[test]
fn gradients_may_be_wide_or_narrow() {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let start = to_half(Net::new(&flex()), dtype, &[]);
        let run = |grads: FloatDType| {
            let mut net = start.clone();
            let mut optim = MasterWeights::new(AdamConfig::new().build());
            for step in 0..3 {
                let grads = gradients(&net, step, 1.0, grads);
                net = optim.step(0.01, net, grads);
            }
            (parameters(&net), state(&optim))
        };
        let expected = run(FloatDType::F32);
        assert_ne!(expected.0, parameters(&start));
        for grads in [FloatDType::F16, FloatDType::BF16, FloatDType::F64] {
            assert_eq!(run(grads), expected, "{grads:?} to {dtype:?}");
        }
    }
}

#[derive(Module, Debug)]
struct One {
    weight: Param<Tensor<1>>,
}

impl One {
    fn new(dtype: DType) -> Self {
        let weight = Tensor::ones([2], (&flex(), dtype));
        Self {
            weight: Param::from_tensor(weight),
        }
    }

    /// Gradients of 2^-30 and -2^-30, too small for f16, at a scale of 2^16.
    fn scaled_gradients(&self, scaler: &GradScaler) -> ScaledGradients {
        let mut grads = GradientsParams::new();
        let small = 2f32.powi(-30 + 16);
        let grad = Tensor::<1>::from_floats([small, -small], &flex());
        grads.register(self.weight.id, grad.cast(FloatDType::F16));
        scaled_by_hand(scaler, grads)
    }
}

/// What the loss scale has saved reaches the master: `ScaledOptimizer` hands it f32.
#[test]
fn the_scaled_optimizer_hands_over_f32() {
    let step = |narrow: bool| {
        let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(narrow);
        let masters = MasterWeights::new(SgdConfig::new().build());
        let mut optim = ScaledOptimizer::new(masters, scaler.init().unwrap());
        let one = One::new(DType::F16);
        let grads = one.scaled_gradients(optim.scaler());
        let one = optim.step(2f64.powi(10), one, grads);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
        assert_eq!(one.weight.val().dtype(), DType::F16);
        numbers_of(&master(optim.optimizer(), &one, "weight").unwrap())
    };
    let moved = 2f32.powi(-20);
    assert_eq!(step(false), [1.0 - moved, 1.0 + moved]);
    assert_eq!(step(true), [1.0, 1.0]);
}

/// f32 and f64 parameters need no master.
#[test]
fn wide_parameters_have_no_master() {
    for dtype in [DType::F32, DType::F64] {
        let one = One::new(dtype);
        let mut optim = MasterWeights::new(AdamConfig::new().build());
        let grads = gradients(&one, 0, 1.0, FloatDType::F32);
        let after = optim.step(0.01, one.clone(), grads);
        assert_eq!(after.weight.val().dtype(), dtype);
        assert_ne!(parameters(&after), parameters(&one));
        assert_eq!(master(&optim, &after, "weight"), None);
        let moments = state(&optim).tensors;
        assert_eq!(moments.len(), 2);
        assert!(moments.values().all(|(_, values)| values.0 == dtype));
    }
}

/// A master beyond the range of f16 is an infinite parameter, and comes back from there.
#[test]
fn a_master_may_leave_the_range_of_f16() {
    let mut one = One::new(DType::F16);
    let mut optim = MasterWeights::new(SgdConfig::new().build());
    let grads = |one: &One, value: f32| {
        let mut grads = GradientsParams::new();
        let grad = Tensor::<1>::from_floats([value, 0.0], &flex());
        grads.register(one.weight.id, grad);
        grads
    };
    for (grad, expected) in [(-99_999.0, 100_000.0), (99_000.0, 1000.0)] {
        one = optim.step(1.0, one.clone(), grads(&one, grad));
        let master = numbers_of(&master(&optim, &one, "weight").unwrap());
        assert_eq!(master, [expected, 1.0]);
    }
    let values: Vec<f32> = one.weight.val().to_data().iter::<f32>().collect();
    assert_eq!(values, [1000.0, 1.0]);
}

//! Gradients of another rank or shape than their parameter's, learning rates and settings that no step can be taken with: an
//! error that names them, and nothing changed.

use burn::{lr_scheduler::LrSchedulerConfig, tensor::Shape};
use burn_amp_tests::small::Small;

use crate::support::*;

fn pair() -> Small {
    Small::new(DType::F32)
}

fn gradients(pair: &Small) -> GradientsParams {
    with_gradient(pair, Tensor::<2>::ones([1, 3], &Device::flex()))
}

fn with_gradient<const D: usize>(pair: &Small, grad: Tensor<D>) -> GradientsParams {
    let mut grads = GradientsParams::new();
    grads.register(pair.weight.id, grad);
    grads.register(pair.bias.id, Tensor::<1>::ones([1], &Device::flex()));
    grads
}

fn scaler(enabled: bool) -> GradScaler {
    let config = GradScalerConfig::new().with_enabled(enabled);
    config.init().unwrap()
}

fn optimizer() -> ScaledOptimizer<ModuleOptimizer> {
    ScaledOptimizer::new(AdamConfig::new().init(), scaler(true))
}

/// Calls `check` with gradients of `weight` that are not of its shape, and with the message's words for their shape.
fn each_wrong_gradient(check: impl Fn(&dyn Fn(&Small) -> GradientsParams, Shape)) {
    fn wrong<const D: usize>(shape: [usize; D]) -> impl Fn(&Small) -> GradientsParams {
        move |pair| with_gradient(pair, Tensor::<D>::ones(shape, &Device::flex()))
    }
    // The first two broadcast against [1, 3].
    check(&wrong([3, 3]), [3, 3].into());
    check(&wrong([1, 1]), [1, 1].into());
    check(&wrong([3, 1]), [3, 1].into());
    check(&wrong([2, 4]), [2, 4].into());
    check(&wrong([3]), [3].into());
    check(&wrong([1, 1, 3]), [1, 1, 3].into());
}

fn assert_names(error: &AmpError, shape: &Shape) {
    let expected = AmpError::GradientShape {
        parameter: "weight".to_string(),
        expected: vec![1, 3],
        found: Some(shape.to_vec()),
    };
    assert_eq!(*error, expected);
    says(error, ["`weight`", "[1, 3]", &shape.to_string()]);
}

#[test]
fn by_every_step_of_an_optimizer() {
    each_wrong_gradient(|wrong, shape| {
        let pair = self::pair();
        let before = stored(&pair);
        let plain =
            |optim: &mut ScaledOptimizer<_>| optim.try_step(0.1, pair.clone(), wrong(&pair));
        let scaled = |optim: &mut ScaledOptimizer<_>| {
            let grads = scaled_by_hand(optim.scaler(), wrong(&pair));
            optim.try_step(0.1, pair.clone(), grads)
        };
        let multi = |optim: &mut ScaledOptimizer<_>| {
            let device = Device::flex();
            let grads = vec![(gradients(&pair), device.clone()), (wrong(&pair), device)];
            optim.step_multi(0.1, pair.clone(), MultiGradientsParams { grads })
        };
        let replaced = |optim: &mut ScaledOptimizer<_>| {
            let grads = scaled_by_hand(optim.scaler(), gradients(&pair));
            let mut grads = optim.unscale(grads, &pair).unwrap();
            *grads.params_mut() = wrong(&pair);
            optim.try_step(0.1, pair.clone(), grads)
        };
        type Step<'a> =
            &'a dyn Fn(&mut ScaledOptimizer<ModuleOptimizer>) -> Result<Small, StepError<Small>>;
        let steps: [Step; 4] = [&plain, &scaled, &multi, &replaced];
        for step in steps {
            for (enabled, window) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
                let scaler = scaler(enabled);
                let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler);
                if window > 1 {
                    optim = optim.with_accumulation(window);
                }
                optim.step(0.1, pair.clone(), gradients(&pair));
                let record = optim.into_bytes().unwrap();
                assert_names(&step(&mut optim).unwrap_err().error, &shape);
                assert_eq!(optim.into_bytes().unwrap(), record);
                optim.step(0.1, pair.clone(), gradients(&pair));
            }
        }
        assert_eq!(stored(&pair), before);
    });
}

#[test]
fn by_every_look_at_gradients() {
    each_wrong_gradient(|wrong, shape| {
        let pair = self::pair();
        assert_names(&inspect(&wrong(&pair), &pair).unwrap_err(), &shape);
        assert_names(&histogram(&wrong(&pair), &pair).unwrap_err(), &shape);
        for enabled in [true, false] {
            let mut scaler = scaler(enabled);
            let grads = scaled_by_hand(&scaler, wrong(&pair));
            assert_names(&scaler.unscale(grads, &pair).unwrap_err(), &shape);
            let mut window = AccumulationConfig::new(2).init().unwrap();
            let error = scaler.accumulate(&mut window, wrong(&pair), &pair);
            assert_names(&error.unwrap_err(), &shape);
            assert!(window.is_empty());
        }
    });
}

fn assert_learning_rate<M>(step: Result<M, impl Into<AmpError>>, value: &str) {
    let error = step.err().expect("an error").into();
    let message = format!("`lr` is {value},");
    is_error(&error, "InvalidValue", [message.as_str()]);
}

#[test]
fn a_learning_rate_that_is_no_number() {
    let pair = self::pair();
    let step = |optim: &mut ScaledOptimizer<_>, lr: f64| {
        optim.try_step(lr, pair.clone(), gradients(&pair))
    };
    for (lr, text) in [
        (f64::NAN, "NaN"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        let mut optim = optimizer();
        let before = optim.into_bytes().unwrap();
        assert_learning_rate(step(&mut optim, lr), text);
        assert_eq!(optim.into_bytes().unwrap(), before);

        // A window keeps what it has, full or not.
        let mut optim = optimizer().with_accumulation(2);
        assert_learning_rate(step(&mut optim, lr), text);
        assert!(optim.window().unwrap().is_empty());
        step(&mut optim, 0.1).unwrap();
        assert_learning_rate(step(&mut optim, lr), text);
        assert_learning_rate(optim.try_flush(lr, pair.clone()), text);
        assert_eq!(optim.window().unwrap().len(), 1);
        let stepped = step(&mut optim, 0.1).unwrap();
        assert_ne!(stored(&stepped), stored(&pair));

        let (mut scaler, mut adam) = (scaler(true), AdamConfig::new().init());
        let grads = scaled_by_hand(&scaler, gradients(&pair));
        let grads = scaler.unscale(grads, &pair).unwrap();
        let stepped = scaler.try_step(&mut adam, lr, pair.clone(), grads);
        assert_learning_rate(stepped, text);
        assert_eq!(scaler.counters().steps(), 0);
    }
    let mut optim = optimizer();
    for lr in [0.0, -0.1] {
        step(&mut optim, lr).unwrap();
    }

    // Of one group of parameters alone.
    let constant = LrSchedulerConfig::Constant;
    let bias = ParamGroup::from_predicate("bias");
    let config = ModuleLrSchedulerConfig::new(constant(0.1)).with_group(bias, constant(f64::NAN));
    let lr: ModuleLearningRate = config.init().unwrap().step();
    let stepped = optimizer().try_step(lr, pair.clone(), gradients(&pair));
    let error = stepped.unwrap_err().error;
    is_error(&error, "InvalidValue", ["`lr` is NaN,", "`bias`"]);
}

//! Gradients of another rank or shape than their parameter's, learning rates and overflows that no step can be taken with: an error that
//! names them, nothing changed, and the module is given back.

use burn::{lr_scheduler::LrSchedulerConfig, tensor::Shape};
use burn_amp_tests::small::Small;

use crate::support::*;

/// Shapes that `weight` does not have, [1, 3]. The first two broadcast against it.
const WRONG: [&[usize]; 6] = [&[3, 3], &[1, 1], &[3, 1], &[2, 4], &[3], &[1, 1, 3]];
const RIGHT: &[usize] = &[1, 3];

fn pair() -> Small {
    Small::new(DType::F32)
}

/// That of `weight` in this shape.
fn gradients(pair: &Small, shape: &[usize]) -> GradientsParams {
    gradients_of(pair, shape, 1.0)
}

/// Of this value.
fn gradients_of(pair: &Small, shape: &[usize], value: f32) -> GradientsParams {
    let mut grads = GradientsParams::new();
    let mut register = |id: ParamId, shape: &[usize]| {
        let device = Device::flex();
        let values = Tensor::<1>::full([shape.iter().product::<usize>()], value, &device);
        match *shape {
            [_] => grads.register(id, values),
            [a, b] => grads.register(id, values.reshape([a, b])),
            [a, b, c] => grads.register(id, values.reshape([a, b, c])),
            _ => unreachable!("{shape:?}"),
        }
    };
    register(pair.weight.id, shape);
    register(pair.bias.id, &[1]);
    grads
}

fn scaler(enabled: bool) -> GradScaler {
    let config = GradScalerConfig::new().with_enabled(enabled);
    config.init().unwrap()
}

fn optimizer(enabled: bool) -> ScaledOptimizer {
    ScaledOptimizer::new(AdamConfig::new().init(), scaler(enabled))
}

fn assert_names(error: &AmpError, shape: &[usize]) {
    let found = Shape::from(shape.to_vec()).to_string();
    is_error(error, "GradientShape", ["`weight`", "[1, 3]", &found]);
}

type Stepped = Result<Small, StepError<Small>>;
type Step = fn(&mut ScaledOptimizer, &Small, GradientsParams) -> Stepped;

/// Burn's gradients, scaled ones, those of a part of several, and those that were put in place of others.
const STEPS: [Step; 4] = [
    |optim, pair, grads| optim.try_step(0.1, pair.clone(), grads),
    |optim, pair, grads| {
        let grads = scaled_by_hand(optim.scaler(), grads);
        optim.try_step(0.1, pair.clone(), grads)
    },
    |optim, pair, grads| {
        let grads = multi(&Device::flex(), vec![gradients(pair, RIGHT), grads]);
        optim.step_multi(0.1, pair.clone(), grads)
    },
    |optim, pair, replaced| {
        let grads = scaled_by_hand(optim.scaler(), gradients(pair, RIGHT));
        let mut grads = optim.unscale(grads, pair).unwrap();
        *grads.params_mut() = replaced;
        optim.try_step(0.1, pair.clone(), grads)
    },
];

#[test]
fn by_every_step_of_an_optimizer() {
    let pair = pair();
    let before = stored(&pair);
    for shape in WRONG {
        for step in STEPS {
            for (enabled, window) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
                let mut optim = optimizer(enabled).with_accumulation(window);
                optim.step(0.1, pair.clone(), gradients(&pair, RIGHT));
                let record = optim.into_bytes().unwrap();
                let failed = step(&mut optim, &pair, gradients(&pair, shape)).unwrap_err();
                assert_names(&failed.error, shape);
                assert_eq!(optim.into_bytes().unwrap(), record);
                optim.step(0.1, pair.clone(), gradients(&pair, RIGHT));
            }
        }
    }
    assert_eq!(stored(&pair), before);
}

#[test]
fn by_every_look_at_gradients() {
    let pair = pair();
    for shape in WRONG {
        let wrong = || gradients(&pair, shape);
        assert_names(&inspect(&wrong(), &pair).unwrap_err(), shape);
        assert_names(&histogram(&wrong(), &pair).unwrap_err(), shape);
        for enabled in [true, false] {
            let mut scaler = scaler(enabled);
            let grads = scaled_by_hand(&scaler, wrong());
            assert_names(&scaler.unscale(grads, &pair).unwrap_err(), shape);
            let mut window = AccumulationConfig::new(2).init().unwrap();
            let error = scaler.accumulate(&mut window, wrong(), &pair);
            assert_names(&error.unwrap_err(), shape);
            assert!(window.is_empty());
        }
    }
}

fn assert_learning_rate<M>(step: Result<M, impl Into<AmpError>>, value: &str) {
    let error = step.err().expect("an error").into();
    is_error(&error, "InvalidValue", [&*format!("`lr` is {value},")]);
}

#[test]
fn a_learning_rate_that_is_no_number() {
    let pair = pair();
    let step = |optim: &mut ScaledOptimizer, lr: f64| {
        optim.try_step(lr, pair.clone(), gradients(&pair, RIGHT))
    };
    // An f32 has no such number as the last.
    for text in ["NaN", "inf", "-inf", "1e39"] {
        let lr: f64 = text.parse().unwrap();
        let mut optim = optimizer(true);
        let before = optim.into_bytes().unwrap();
        assert_learning_rate(step(&mut optim, lr), text);
        assert_eq!(optim.into_bytes().unwrap(), before);

        // A window keeps what it has, full or not.
        let mut optim = optim.with_accumulation(2);
        assert_learning_rate(step(&mut optim, lr), text);
        assert!(optim.window().unwrap().is_empty());
        step(&mut optim, 0.1).unwrap();
        assert_learning_rate(step(&mut optim, lr), text);
        assert_learning_rate(optim.try_flush(lr, pair.clone()), text);
        assert_eq!(optim.window().unwrap().len(), 1);
        let stepped = step(&mut optim, 0.1).unwrap();
        assert_ne!(stored(&stepped), stored(&pair));

        let (mut scaler, mut adam) = (scaler(true), AdamConfig::new().init());
        let grads = scaled_by_hand(&scaler, gradients(&pair, RIGHT));
        let grads = scaler.unscale(grads, &pair).unwrap();
        let stepped = scaler.try_step(&mut adam, lr, pair.clone(), grads);
        assert_learning_rate(stepped, text);
        assert_eq!(scaler.counters().steps(), 0);
    }
    let mut optim = optimizer(true);
    for lr in [0.0, -0.1] {
        step(&mut optim, lr).unwrap();
    }

    // Of one group of parameters alone.
    let constant = LrSchedulerConfig::Constant;
    let bias = ParamGroup::from_predicate("bias");
    let config = ModuleLrSchedulerConfig::new(constant(0.1)).with_group(bias, constant(f64::NAN));
    let lr: ModuleLearningRate = config.init().unwrap().step();
    let stepped = optimizer(true).try_step(lr, pair.clone(), gradients(&pair, RIGHT));
    let error = stepped.unwrap_err().error;
    is_error(&error, "InvalidValue", ["`lr` is NaN,", "`bias`"]);
}

/// One that no overflow is left to.
fn limited() -> ScaledOptimizer {
    sgd_under(GradScalerConfig::new().with_max_consecutive_skips(Some(0)))
}

/// A scaler and gradients that overflow, unscaled by it.
fn by_hand(pair: &Small) -> (GradScaler, UnscaledGradients) {
    let scaler = limited().scaler().clone();
    let grads = scaled_by_hand(&scaler, gradients_of(pair, RIGHT, f32::NAN));
    let grads = scaler.unscale(grads, pair).unwrap();
    (scaler, grads)
}

const FAILING: [fn(Small) -> Stepped; 5] = [
    |pair| {
        let bad = gradients_of(&pair, RIGHT, f32::INFINITY);
        STEPS[0](&mut limited(), &pair, bad)
    },
    |pair| STEPS[2](&mut limited(), &pair, gradients_of(&pair, RIGHT, f32::NAN)),
    |pair| STEPS[2](&mut limited(), &pair, gradients(&pair, WRONG[0])),
    |pair| {
        let mut optim = limited().with_accumulation(3);
        let grads = gradients(&pair, RIGHT);
        let pair = optim.try_step(0.1, pair, grads)?;
        optim.try_flush(f64::NAN, pair)
    },
    |pair| {
        let (mut scaler, grads) = by_hand(&pair);
        scaler.try_step(&mut SgdConfig::new().init(), 0.1, pair, grads)
    },
];

/// And `?` leaves the error, in this crate's type and in a box.
#[test]
fn the_module_comes_back_as_it_was() {
    type Wide = Box<dyn std::error::Error>;
    for step in FAILING {
        let before = stored(&pair());
        let failed = step(pair()).unwrap_err();
        let text = format!("{failed:?}");
        let StepError { module, error } = failed;
        assert_eq!(stored(&*module), before, "{error}");
        says(&text, [format!("{error:?}").as_str()]);

        let narrow = || -> Result<Small, AmpError> { Ok(step(pair())?) };
        assert_eq!(narrow().unwrap_err(), error);
        let wide = || -> Result<Small, Wide> { Ok(step(pair())?) };
        assert_eq!(wide().unwrap_err().to_string(), error.to_string());

        // It trains on.
        let grads = gradients(&module, RIGHT);
        let stepped = limited().step(0.1, *module, grads);
        assert_ne!(stored(&stepped), before);
    }
}

/// The plain twin panics with the same words.
#[test]
fn the_plain_step_panics_with_the_message() {
    let pair = pair();
    let message = FAILING[0](pair.clone()).unwrap_err().to_string();
    let (mut scaler, grads) = by_hand(&pair);
    let panic = panic_message(|| scaler.step(&mut SgdConfig::new().init(), 0.1, pair, grads));
    assert_eq!(panic, message);
}

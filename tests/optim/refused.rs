//! Gradients of another rank, shape or dtype, learning rates and overflows that no step can be taken with: an error that names them, nothing
//! changed, and the module is given back.

use burn::{lr_scheduler::LrSchedulerConfig, tensor::Shape};
use burn_amp_tests::small::Small;
use half::bf16;
use std::error::Error;

use crate::support::*;

/// Shapes that `weight` does not have, [1, 3]. The first two broadcast against it.
const WRONG: [&[usize]; 6] = [&[3, 3], &[1, 1], &[3, 1], &[2, 4], &[3], &[1, 1, 3]];
const RIGHT: &[usize] = &[1, 3];

/// That of `weight` in this shape, and all of this value.
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

fn gradients(pair: &Small, shape: &[usize]) -> GradientsParams {
    gradients_of(pair, shape, 1.0)
}

fn pair() -> Small {
    Small::new(DType::F32)
}

fn optimizer(enabled: bool) -> ScaledOptimizer {
    let config = GradScalerConfig::new().with_enabled(enabled);
    ScaledOptimizer::new(AdamConfig::new().init(), GradScaler::new(config).unwrap())
}

type Stepped = Result<Small, StepError<Small>>;

/// The error of a step that changes nothing, and after which the optimizer steps on.
fn refused(
    optim: &mut ScaledOptimizer,
    step: impl FnOnce(&mut ScaledOptimizer, Small) -> Stepped,
) -> AmpError {
    let before = optim.into_bytes().unwrap();
    let failed = step(optim, pair()).unwrap_err();
    assert_eq!(stored(&*failed.module), stored(&pair()));
    assert_eq!(optim.into_bytes().unwrap(), before);
    let mut optim = optim.clone();
    optim.step(0.1, pair(), gradients(&pair(), RIGHT));
    failed.error
}

/// Burn's gradients, scaled ones, those of a part of several, and those that were put in place of others.
const STEPS: [fn(&mut ScaledOptimizer, Small, GradientsParams) -> Stepped; 4] = [
    |optim, pair, grads| optim.try_step(0.1, pair, grads),
    |optim, pair, grads| {
        let grads = scaled_by_hand(optim.scaler(), grads);
        optim.try_step(0.1, pair, grads)
    },
    |optim, pair, grads| {
        let grads = multi(&Device::flex(), vec![gradients(&pair, RIGHT), grads]);
        optim.step_multi(0.1, pair, grads)
    },
    |optim, pair, replaced| {
        let grads = scaled_by_hand(optim.scaler(), gradients(&pair, RIGHT));
        let mut grads = optim.unscale(grads, &pair).unwrap();
        *grads.params_mut() = replaced;
        optim.try_step(0.1, pair, grads)
    },
];

#[test]
fn gradients_of_another_shape() {
    let pair = pair();
    for (shape, enabled) in WRONG
        .iter()
        .flat_map(|shape| [(shape, true), (shape, false)])
    {
        let wrong = || gradients(&pair, shape);
        let names = |error: AmpError| {
            is_error(&error, "GradientShape", ["`weight`", "[1, 3]"]);
            // Burn does not say the shape of one of another rank.
            if shape.len() == RIGHT.len() {
                says(&error, [&*Shape::from(shape.to_vec()).to_string()]);
            }
        };
        for (step, window) in STEPS.iter().flat_map(|step| [(step, 1), (step, 2)]) {
            let mut optim = optimizer(enabled).with_accumulation(window);
            optim.step(0.1, pair.clone(), gradients(&pair, RIGHT));
            names(refused(&mut optim, |optim, pair| {
                step(optim, pair, wrong())
            }));
        }
        // By every look at them, too.
        names(inspect(&wrong(), &pair).unwrap_err());
        names(histogram(&wrong(), &pair).unwrap_err());
        let mut scaler = GradScaler::from(optimizer(enabled).scaler().clone());
        let grads = scaled_by_hand(&scaler, wrong());
        names(scaler.unscale(grads, &pair).unwrap_err());
        let mut window = AccumulationConfig::new(2).init().unwrap();
        names(scaler.accumulate(&mut window, wrong(), &pair).unwrap_err());
        assert!(window.is_empty());
    }
}

/// A window keeps what it has, full or not.
#[test]
fn a_learning_rate_that_is_no_number() {
    let good = || gradients(&pair(), RIGHT);
    // An f32 has no such number as the last.
    for text in ["NaN", "inf", "-inf", "1e39"] {
        let lr: f64 = text.parse().unwrap();
        let parts = [&*format!("`lr` is {text},")];
        let windowed = || optimizer(true).with_accumulation(2);
        let mut half_full = windowed();
        half_full.step(0.1, pair(), good());
        for mut optim in [optimizer(true), windowed(), half_full] {
            let step = |optim: &mut ScaledOptimizer, pair| optim.try_step(lr, pair, good());
            is_error(&refused(&mut optim, step), "InvalidValue", parts);
            if optim.window().is_some_and(|window| !window.is_empty()) {
                let flush = |optim: &mut ScaledOptimizer, pair| optim.try_flush(lr, pair);
                is_error(&refused(&mut optim, flush), "InvalidValue", parts);
            }
        }
        let mut scaler = GradScaler::from(limited().scaler().clone());
        let grads = unscaled(&scaler, 1.0);
        let stepped = scaler.try_step(&mut SgdConfig::new().init(), lr, pair(), grads);
        is_error(&stepped.unwrap_err().error, "InvalidValue", parts);
        assert_eq!(scaler.counters().steps(), 0);
    }
    for lr in [0.0, -0.1] {
        optimizer(true).try_step(lr, pair(), good()).unwrap();
    }

    // Of one group of parameters alone.
    let constant = LrSchedulerConfig::Constant;
    let bias = ParamGroup::from_predicate("bias");
    let config = ModuleLrSchedulerConfig::new(constant(0.1)).with_group(bias, constant(f64::NAN));
    let lr: ModuleLearningRate = config.init().unwrap().step();
    let error = refused(&mut optimizer(true), |optim, pair| {
        optim.try_step(lr, pair, good())
    });
    is_error(&error, "InvalidValue", ["`lr` is NaN,", "`bias`"]);
}

/// One that no overflow is left to.
fn limited() -> ScaledOptimizer {
    sgd_under(GradScalerConfig::new().with_max_consecutive_skips(Some(0)))
}

/// Gradients of this value.
fn unscaled(scaler: &GradScaler, value: f32) -> UnscaledGradients {
    let grads = scaled_by_hand(scaler, gradients_of(&pair(), RIGHT, value));
    scaler.unscale(grads, &pair()).unwrap()
}

/// `?` leaves the error, in this crate's type and in a box. The plain twin panics with the same words.
#[test]
fn the_module_comes_back_where_the_loss_scale_is_exhausted() {
    let mut scaler = GradScaler::from(limited().scaler().clone());
    let grads = unscaled(&scaler, f32::NAN);
    let by_hand = scaler.try_step(&mut SgdConfig::new().init(), 0.1, pair(), grads);
    let [infinite, nan] = [f32::INFINITY, f32::NAN].map(|bad| gradients_of(&pair(), RIGHT, bad));
    let plain = STEPS[0](&mut limited(), pair(), infinite);
    let multi = STEPS[2](&mut limited(), pair(), nan);
    for stepped in [by_hand, plain, multi] {
        let failed = stepped.unwrap_err();
        let text = format!("{failed:?}");
        let StepError { module, error } = failed.clone();
        assert_eq!(stored(&*module), stored(&pair()), "{error}");
        says(&text, [format!("{error:?}").as_str()]);
        assert_eq!(AmpError::from(failed.clone()), error);
        let wide: Box<dyn Error> = failed.into();
        assert_eq!(wide.to_string(), error.to_string());
        let mut scaler = GradScaler::from(limited().scaler().clone());
        let grads = unscaled(&scaler, f32::NAN);
        let mut optim = SgdConfig::new().init();
        let message = panic_message(|| scaler.step(&mut optim, 0.1, pair(), grads));
        assert_eq!(message, error.to_string());
        // It trains on.
        let grads = gradients(&module, RIGHT);
        assert_ne!(
            stored(&limited().step(0.1, *module, grads)),
            stored(&pair())
        );
    }
}

/// On the device that the features choose: WGSL has no bf16.
#[test]
fn a_dtype_that_the_device_lacks() {
    let device = Device::default();
    for dtype in [FloatDType::F16, FloatDType::BF16, FloatDType::F32] {
        let checked = MixedPrecision::new(dtype).check_device(&device);
        let missing = format!("has no {:?}", DType::from(dtype));
        match device.supports_dtype(DType::from(dtype)) {
            true => assert_eq!(checked, Ok(())),
            false => says(&checked.unwrap_err(), [&missing, "F32"]),
        }
    }

    let Trial { mut optim, model } = Trial::new(sgd_under(GradScalerConfig::new()));
    let gradients = || {
        let data = TensorData::new(vec![bf16::ONE; 4], [4]);
        let mut grads = GradientsParams::new();
        let grad = Tensor::<1>::from_data(data, (&device, DType::BF16));
        grads.register(model.bias.id, grad);
        grads
    };
    let before = optim.scaler().bits();
    let looked = inspect(&gradients(), &model);
    let scaled = scaled_by_hand(optim.scaler(), gradients());
    let stepped = optim.try_step(0.1, model.clone(), scaled);
    if device.supports_dtype(DType::BF16) {
        assert_eq!(looked.unwrap().max_abs(), 1.0);
        assert!(stepped.is_ok());
        return;
    }
    let plain = optim.try_step(0.1, model.clone(), gradients());
    let [stepped, plain] = [stepped, plain].map(|step| step.unwrap_err().error);
    for error in [looked.unwrap_err(), stepped, plain] {
        is_error(&error, "UnsupportedDType", []);
    }
    assert_eq!(optim.scaler().bits(), before);
}

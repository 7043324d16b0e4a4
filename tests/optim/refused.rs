//! Gradients of another rank, shape or dtype, learning rates and overflows that no step can be taken with: an error that names them, nothing
//! changed, and the module is given back.

use burn::tensor::Shape;
use burn_amp_tests::small::Small;
use half::bf16;
use std::error::Error;

use crate::support::*;

/// Shapes that `weight` does not have, [1, 3]. The first two broadcast against it.
const WRONG: [&[usize]; 6] = [&[3, 3], &[1, 1], &[3, 1], &[2, 4], &[3], &[1, 1, 3]];
const RIGHT: &[usize] = &[1, 3];

/// That of `weight` in this shape, and all of this value.
fn gradients_of(shape: &[usize], value: f32) -> GradientsParams {
    let (pair, mut grads, device) = (pair(), GradientsParams::new(), Device::flex());
    let (id, values) = (pair.weight.id, Tensor::<1>::full([9], value, &device));
    let values = values.narrow(0, 0, shape.iter().product());
    match *shape {
        [_] => grads.register(id, values),
        [a, b] => grads.register(id, values.reshape([a, b])),
        [a, b, c] => grads.register(id, values.reshape([a, b, c])),
        _ => unreachable!("{shape:?}"),
    }
    grads.register(pair.bias.id, Tensor::<1>::full([1], value, &device));
    grads
}

fn good() -> GradientsParams {
    gradients_of(RIGHT, 1.0)
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
    let error = burn_amp_tests::refused(optim, |optim| {
        let failed = step(optim, pair()).unwrap_err();
        assert_eq!(stored(&*failed.module), stored(&pair()));
        Err(failed.error)
    });
    optim.clone().step(0.1, pair(), good());
    error
}

/// Burn's gradients, scaled ones, those of a part of several, and those that were put in place of others.
const STEPS: [fn(&mut ScaledOptimizer, Small, GradientsParams) -> Stepped; 4] = [
    |optim, pair, grads| optim.try_step(0.1, pair, grads),
    |optim, pair, grads| {
        let grads = scaled_by_hand(optim.scaler(), grads);
        optim.try_step(0.1, pair, grads)
    },
    |optim, pair, grads| {
        let grads = multi(&Device::flex(), vec![good(), grads]);
        optim.step_multi(0.1, pair, grads)
    },
    |optim, pair, replaced| {
        let grads = scaled_by_hand(optim.scaler(), good());
        let mut grads = optim.unscale(grads, &pair).unwrap();
        *grads.params_mut() = replaced;
        optim.try_step(0.1, pair, grads)
    },
];

#[test]
fn gradients_of_another_shape() {
    let pair = pair();
    let cases = WRONG.map(|shape| [(shape, true), (shape, false)]);
    for (shape, enabled) in cases.as_flattened() {
        let wrong = || gradients_of(shape, 1.0);
        let names = |error: AmpError| {
            is_error(&error, "GradientShape", ["`weight`", "[1, 3]"]);
            // Burn does not say the shape of one of another rank.
            if shape.len() == RIGHT.len() {
                says(&error, [&*Shape::from(shape.to_vec()).to_string()]);
            }
        };
        for (step, window) in STEPS.iter().flat_map(|step| [(step, 1), (step, 2)]) {
            let mut optim = optimizer(*enabled).with_accumulation(window);
            optim.step(0.1, pair.clone(), good());
            let step = |optim: &mut _, pair| step(optim, pair, wrong());
            names(refused(&mut optim, step));
        }
        // By every look at them, too.
        names(inspect(&wrong(), &pair).unwrap_err());
        names(histogram(&wrong(), &pair).unwrap_err());
        let mut scaler = GradScaler::from(optimizer(*enabled).scaler().clone());
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
    // An f32 has no such number as the last.
    for text in ["NaN", "inf", "-inf", "1e39"] {
        let lr: f64 = text.parse().unwrap();
        let parts = [&*format!("`lr` is {text},")];
        for (window, taken) in [(1, 0), (2, 0), (2, 1)] {
            let mut optim = optimizer(true).with_accumulation(window);
            (0..taken).for_each(|_| drop(optim.step(0.1, pair(), good())));
            let error = refused(&mut optim, |optim, pair| optim.try_step(lr, pair, good()));
            is_error(&error, "InvalidValue", parts);
            if taken > 0 {
                let error = refused(&mut optim, |optim, pair| optim.try_flush(lr, pair));
                is_error(&error, "InvalidValue", parts);
            }
        }
        let mut scaler = limited();
        let grads = unscaled(&scaler, 1.0);
        let stepped = scaler.try_step(&mut SgdConfig::new().init(), lr, pair(), grads);
        is_error(&stepped.unwrap_err().error, "InvalidValue", parts);
        assert_eq!(scaler.counters().steps(), 0);
    }
    for lr in [0.0, -0.1] {
        optimizer(true).try_step(lr, pair(), good()).unwrap();
    }

    // Of one group of parameters alone.
    let bias = ParamGroup::from_predicate("bias");
    let mut lr = ModuleLrScheduler::new(0.1).with_group(bias, f64::NAN);
    let step = |optim: &mut ScaledOptimizer, pair| optim.try_step(lr.step(), pair, good());
    let error = refused(&mut optimizer(true), step);
    is_error(&error, "InvalidValue", ["`lr` is NaN,", "`bias`"]);
}

/// One that no overflow is left to.
fn limited() -> GradScaler {
    let none = GradScalerConfig::new().with_max_consecutive_skips(Some(0));
    GradScaler::new(none).unwrap()
}

/// Gradients of this value.
fn unscaled(scaler: &GradScaler, value: f32) -> UnscaledGradients {
    let grads = scaled_by_hand(scaler, gradients_of(RIGHT, value));
    scaler.unscale(grads, &pair()).unwrap()
}

/// `?` leaves the error, in this crate's type and in a box. The plain twin panics with the same words.
#[test]
fn the_module_comes_back_where_the_loss_scale_is_exhausted() {
    let sgd = || SgdConfig::new().init();
    let mut scalers = [limited(), limited()];
    let [of_try, of_step] = scalers.each_ref().map(|scaler| unscaled(scaler, f32::NAN));
    let by_hand = scalers[0].try_step(&mut sgd(), 0.1, pair(), of_try);
    let message = panic_message(|| scalers[1].step(&mut sgd(), 0.1, pair(), of_step));
    let mut optims = [(); 2].map(|()| ScaledOptimizer::new(sgd(), limited()));
    let [infinite, nan] = [f32::INFINITY, f32::NAN].map(|bad| gradients_of(RIGHT, bad));
    let plain = STEPS[0](&mut optims[0], pair(), infinite);
    let multi = STEPS[2](&mut optims[1], pair(), nan);
    for stepped in [by_hand, plain, multi] {
        let failed = stepped.unwrap_err();
        let error = failed.error.clone();
        assert_eq!(stored(&*failed.module), stored(&pair()), "{error}");
        says(&format!("{failed:?}"), [&*format!("{error:?}")]);
        assert_eq!(error.to_string(), message);
        assert_eq!(AmpError::from(failed.clone()), error);
        let wide: Box<dyn Error> = failed.into();
        assert_eq!(wide.to_string(), message);
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

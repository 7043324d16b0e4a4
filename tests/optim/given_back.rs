//! A step that fails gives the module back.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn model() -> Linear {
    LinearConfig::new(2, 2).init(&Device::default().autodiff())
}

fn gradients(model: &Linear, value: f32) -> GradientsParams {
    let mut grads = GradientsParams::new();
    let grad = Tensor::<2>::full([2, 2], value, &Device::default());
    grads.register(model.weight.id, grad);
    grads
}

/// One that no overflow is left to.
fn scaler() -> GradScaler {
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(0));
    config.init().unwrap()
}

fn optimizer() -> ScaledOptimizer<ModuleOptimizer> {
    ScaledOptimizer::new(SgdConfig::new().init(), scaler())
}

/// The values and the ids.
fn parts(model: &Linear) -> (u64, Vec<f32>, Vec<f32>) {
    let bias = model.bias.as_ref().unwrap();
    (
        model.weight.id.val(),
        model.weight.val().into_data().try_to_vec().unwrap(),
        bias.val().into_data().try_to_vec().unwrap(),
    )
}

type Step = fn(Linear) -> Result<Linear, StepError<Linear>>;

fn each_failing_step(check: impl Fn(Step)) {
    check(|model| {
        let grads = gradients(&model, f32::INFINITY);
        optimizer().try_step(0.1, model, grads)
    });
    check(|model| {
        let mut optim = optimizer().with_accumulation(3).unwrap();
        let grads = gradients(&model, f32::MAX);
        let model = optim.try_step(0.1, model, grads)?;
        let grads = gradients(&model, f32::MAX);
        let model = optim.try_step(0.1, model, grads)?;
        optim.try_flush(f64::NAN, model)
    });
    check(|model| {
        let device = Device::default();
        let grads = [1.0, f32::NAN].map(|value| (gradients(&model, value), device.clone()));
        let grads = grads.into();
        optimizer().step_multi(0.1, model, MultiGradientsParams { grads })
    });
    check(|model| {
        let device = Device::default();
        let mut grads = GradientsParams::new();
        grads.register(model.weight.id, Tensor::<2>::ones([3, 1], &device));
        let grads = vec![(grads, device)];
        optimizer().step_multi(0.1, model, MultiGradientsParams { grads })
    });
    check(|model| {
        let mut scaler = scaler();
        let grads = scaled_by_hand(&scaler, gradients(&model, f32::NAN));
        let grads = scaler.unscale(grads, &model).unwrap();
        scaler.try_step(&mut SgdConfig::new().init(), 0.1, model, grads)
    });
}

#[test]
fn the_module_comes_back_as_it_was() {
    each_failing_step(|step| {
        let model = model();
        let before = parts(&model);
        let StepError { module, error } = step(model).unwrap_err();
        assert_eq!(parts(&module), before, "{error}");
        // It trains on.
        let grads = gradients(&module, 1.0);
        let stepped = optimizer().step(0.1, *module, grads);
        assert_ne!(parts(&stepped).1, before.1);
    });
}

/// `?` leaves the error, in this crate's type and in a box.
#[test]
fn the_question_mark_takes_the_error() {
    each_failing_step(|step| {
        let expected = step(model()).unwrap_err().error;
        let narrow = || -> Result<usize, AmpError> { Ok(step(model())?.num_params()) };
        assert_eq!(narrow().unwrap_err(), expected);
        let wide =
            || -> Result<usize, Box<dyn std::error::Error>> { Ok(step(model())?.num_params()) };
        assert_eq!(wide().unwrap_err().to_string(), expected.to_string());
        let text = format!("{:?}", step(model()).unwrap_err());
        assert!(text.contains(&format!("{expected:?}")), "{text}");
    });
}

/// The plain twin panics with the same words.
#[test]
fn the_plain_step_panics_with_the_message() {
    let bad = |model: &Linear| gradients(model, f32::INFINITY);
    let model = model();
    let message = optimizer()
        .try_step(0.1, model.clone(), bad(&model))
        .unwrap_err()
        .to_string();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        optimizer().step(0.1, model.clone(), bad(&model))
    }));
    let panic = panic.map(drop).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>(), Some(&message));
}

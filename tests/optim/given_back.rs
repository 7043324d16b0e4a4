//! A step that fails gives the module back.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{panic_message, parameters, scaled_by_hand};

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

type Step = fn(Linear) -> Result<Linear, StepError<Linear>>;

/// A step on the parts of several devices.
fn on_devices<const N: usize>(
    parts: [GradientsParams; N],
    model: Linear,
) -> Result<Linear, StepError<Linear>> {
    let grads = parts.map(|part| (part, Device::default())).into();
    optimizer().step_multi(0.1, model, MultiGradientsParams { grads })
}

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
        let grads = [1.0, f32::NAN].map(|value| gradients(&model, value));
        on_devices(grads, model)
    });
    check(|model| {
        let mut grads = GradientsParams::new();
        let other_shape = Tensor::<2>::ones([3, 1], &Device::default());
        grads.register(model.weight.id, other_shape);
        on_devices([grads], model)
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
        let before = parameters(&model);
        let StepError { module, error } = step(model).unwrap_err();
        assert_eq!(parameters(&*module), before, "{error}");
        // It trains on.
        let grads = gradients(&module, 1.0);
        let stepped = optimizer().step(0.1, *module, grads);
        assert_ne!(parameters(&stepped)["weight"], before["weight"]);
    });
}

/// `?` leaves the error, in this crate's type and in a box.
#[test]
fn the_question_mark_takes_the_error() {
    each_failing_step(|step| {
        let expected = step(model()).unwrap_err().error;
        let narrow = || -> Result<usize, AmpError> { Ok(step(model())?.num_params()) };
        assert_eq!(narrow().unwrap_err(), expected);
        type Wide = Box<dyn std::error::Error>;
        let wide = || -> Result<usize, Wide> { Ok(step(model())?.num_params()) };
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
    let failed = optimizer().try_step(0.1, model.clone(), bad(&model));
    let message = failed.unwrap_err().to_string();
    let panic = panic_message(|| optimizer().step(0.1, model.clone(), bad(&model)));
    assert_eq!(panic, message);
}

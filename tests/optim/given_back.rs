//! A step that fails gives the module back.

use crate::support::*;

fn model() -> Linear {
    LinearConfig::new(2, 2).init(&device())
}

fn gradients(model: &Linear, shape: [usize; 2], value: f32) -> GradientsParams {
    let mut grads = GradientsParams::new();
    let grad = Tensor::<2>::full(shape, value, &Device::default());
    grads.register(model.weight.id, grad);
    grads
}

/// One that no overflow is left to.
fn optimizer() -> ScaledOptimizer {
    sgd_under(GradScalerConfig::new().with_max_consecutive_skips(Some(0)))
}

type Step = fn(Linear) -> Result<Linear, StepError<Linear>>;

/// A scaler and gradients that overflow, unscaled by it.
fn by_hand(model: &Linear) -> (GradScaler, UnscaledGradients) {
    let scaler = optimizer().scaler().clone();
    let grads = scaled_by_hand(&scaler, gradients(model, [2, 2], f32::NAN));
    let grads = scaler.unscale(grads, model).unwrap();
    (scaler, grads)
}

const FAILING: [Step; 5] = [
    |model| {
        let grads = gradients(&model, [2, 2], f32::INFINITY);
        optimizer().try_step(0.1, model, grads)
    },
    |model| {
        let mut optim = optimizer().with_accumulation(3);
        let grads = [(); 2].map(|()| gradients(&model, [2, 2], f32::MAX));
        let stepped = grads
            .into_iter()
            .try_fold(model, |model, grads| optim.try_step(0.1, model, grads));
        optim.try_flush(f64::NAN, stepped?)
    },
    |model| {
        let grads = [1.0, f32::NAN].map(|value| gradients(&model, [2, 2], value));
        optimizer().step_multi(0.1, model, multi(&Device::default(), grads.into()))
    },
    |model| {
        let grads = vec![gradients(&model, [3, 1], 1.0)];
        optimizer().step_multi(0.1, model, multi(&Device::default(), grads))
    },
    |model| {
        let (mut scaler, grads) = by_hand(&model);
        scaler.try_step(&mut SgdConfig::new().init(), 0.1, model, grads)
    },
];

/// And `?` leaves the error, in this crate's type and in a box.
#[test]
fn the_module_comes_back_as_it_was() {
    type Wide = Box<dyn std::error::Error>;
    for step in FAILING {
        let model = model();
        let before = parameters(&model);
        let failed = step(model).unwrap_err();
        let text = format!("{failed:?}");
        let StepError { module, error } = failed;
        assert_eq!(parameters(&*module), before, "{error}");
        says(&text, [format!("{error:?}").as_str()]);

        let narrow = || -> Result<Linear, AmpError> { Ok(step(self::model())?) };
        assert_eq!(narrow().unwrap_err(), error);
        let wide = || -> Result<Linear, Wide> { Ok(step(self::model())?) };
        assert_eq!(wide().unwrap_err().to_string(), error.to_string());

        // It trains on.
        let grads = gradients(&module, [2, 2], 1.0);
        let stepped = optimizer().step(0.1, *module, grads);
        assert_ne!(parameters(&stepped)[0], before[0]);
    }
}

/// The plain twin panics with the same words.
#[test]
fn the_plain_step_panics_with_the_message() {
    let model = model();
    let message = FAILING[0](model.clone()).unwrap_err().to_string();
    let bad = gradients(&model, [2, 2], f32::INFINITY);
    let panic = panic_message(|| optimizer().step(0.1, model.clone(), bad));
    assert_eq!(panic, message);
    let (mut scaler, grads) = by_hand(&model);
    let panic = panic_message(|| scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads));
    assert_eq!(panic, message);
}

//! Half-precision parameters without masters, where asked for: with a state that Burn cannot load. States with masters and without.

use super::support::*;

fn half() -> Linear {
    let linear = LinearConfig::new(3, 2).init(&flex());
    to_half(linear, FloatDType::F16, &[])
}

fn first(optim: &ScaledOptimizer, linear: &Linear) -> ScaledGradients {
    scaled_by_hand(optim.scaler(), gradients(linear, 0, 1.0, FloatDType::F16))
}

/// Burn builds the state of Adam in the device's default dtype, f32: the next step would panic.
#[test]
fn the_half_precision_state_of_adam_cannot_be_resumed() {
    let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let build = || ScaledOptimizer::new(AdamConfig::new().init(), scaler.init().unwrap());
    let (mut optim, linear) = (build(), half());
    let grads = first(&optim, &linear);
    let before = parameters(&linear);
    let linear = optim.step(0.1, linear, grads);
    assert_ne!(parameters(&linear), before);

    // It is not even saved.
    let error = optim.into_bytes().unwrap_err();
    assert!(matches!(error, AmpError::RecordIo { .. }), "{error}");
    assert!(error.to_string().contains("f16"), "{error}");
    let mut resumed = build();
    let untouched = pack(resumed.into_bytes().unwrap());
    let plain = optim.optimizer().into_bytes().unwrap();
    let error = resumed.from_bytes(plain).unwrap_err();
    assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
    says(&error, ["moment", "f16", "f32", "default float dtype"]);
    assert_eq!(pack(resumed.into_bytes().unwrap()), untouched);
}

/// Without state tensors there is nothing to convert.
#[test]
fn bare_sgd_can_be_resumed() {
    let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let build = || ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap());
    let (mut optim, linear) = (build(), half());
    let grads = first(&optim, &linear);
    optim.step(0.1, linear, grads);
    let mut resumed = build();
    resumed.from_bytes(optim.into_bytes().unwrap()).unwrap();
    let [found, expected] =
        [&mut resumed, &mut optim].map(|optim| pack(optim.into_bytes().unwrap()));
    assert_eq!(found, expected);
}

/// A plain optimizer has no place for masters: it refuses them, and nothing changes. Without masters, a state is taken: they begin with
/// the parameters.
#[test]
fn with_and_without_masters() {
    let scaler = || GradScalerConfig::new().init().unwrap();
    let fresh = || MasterWeights::new(AdamConfig::new().build());
    let norm = [ParamGroup::from_predicate("norm")];
    let mixed = to_half(Net::new(&flex()), FloatDType::F16, &norm);
    let mut masters = fresh();
    let grads = gradients(&mixed, 0, 1.0, FloatDType::F32);
    masters.step(0.01, mixed, grads);
    // Its own record loads without a scaler too.
    let mut loaded = fresh();
    loaded.load_record(masters.to_record().unwrap()).unwrap();
    assert_eq!(state(&loaded), state(&masters));
    let mut masters = ScaledOptimizer::new(masters, scaler());

    let plain = Net::new(&flex());
    let mut adam = AdamConfig::new().init();
    let grads = gradients(&plain, 0, 1.0, FloatDType::F32);
    adam.step(0.01, plain.clone(), grads);
    let mut adam = ScaledOptimizer::new(adam, scaler());

    let adam_before = adam.into_bytes().unwrap();
    let error = adam.from_bytes(masters.into_bytes().unwrap()).unwrap_err();
    assert!(error.to_string().contains("does not fit"), "{error}");
    assert_eq!(pack(adam.into_bytes().unwrap()), pack(adam_before.clone()));

    masters.from_bytes(adam_before.clone()).unwrap();
    assert_eq!(pack(masters.into_bytes().unwrap()), pack(adam_before));
    let mut masters = masters.into_inner();
    let half = to_half(plain, FloatDType::F16, &[]);
    let grads = gradients(&half, 1, 1.0, FloatDType::F32);
    masters.step(0.01, half, grads);
    let stepped = state(&masters);
    let times = (stepped.scalars.iter()).filter(|(name, _)| name.ends_with("inner.momentum.time"));
    let times: Vec<_> = times.map(|(_, time)| usize::try_from(*time)).collect();
    assert_eq!(times, [Ok(2); 6]);
}

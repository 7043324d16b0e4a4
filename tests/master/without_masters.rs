//! Half-precision parameters without masters, where asked for: with a state that Burn cannot load. States with masters and without.

use super::support::*;

fn without_masters() -> ScaledOptimizer {
    let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    ScaledOptimizer::new(AdamConfig::new().init(), GradScaler::new(scaler).unwrap())
}

/// Burn builds the state of Adam in the device's default dtype, f32: the next step would panic. It is not even saved.
#[test]
fn the_half_precision_state_of_adam_cannot_be_resumed() {
    let (mut optim, mut resumed) = (without_masters(), without_masters());
    let half = Pair::new([0.0; 10], &flex(), DType::F16);
    let grads = half.scaled(ONES, 65536.0 / 2.0);
    assert_ne!(optim.step(0.1, half, grads).values(), [0.0; 10]);
    let saved = optim.into_bytes().unwrap_err();
    is_error(&saved, "RecordIo", ["f16", "`MasterWeights`"]);
    assert!(!saved.to_string().contains("another optimizer"), "{saved}");
    let plain = optim.optimizer().into_bytes().unwrap();
    let error = refused(&mut resumed, |optim| optim.from_bytes(plain));
    let parts = ["moment", "f16", "f32", "default float dtype"];
    is_error(&error, "ForeignRecord", parts);
}

/// A plain optimizer has no place for masters: it refuses them, and nothing changes. Without masters, a state is taken: they begin with
/// the parameters.
#[test]
fn with_and_without_masters() {
    let norm = [ParamGroup::from_predicate("norm")];
    let mixed = to_half(net(&flex()), FloatDType::F16, &norm);
    let mut masters = adam();
    step(&mut masters, 0.01, mixed, 1.0);
    // Its own record loads without a scaler too.
    let mut loaded = adam();
    loaded.load_record(masters.to_record().unwrap()).unwrap();
    assert_eq!(state(&loaded), state(&masters));
    let mut masters = ScaledOptimizer::new(masters, default_scaler());

    let plain = net(&flex());
    let mut adam = AdamConfig::new().init();
    let grads = gradients(&plain, 0, 1.0, FloatDType::F32);
    adam.step(0.01, plain.clone(), grads);
    let mut adam = ScaledOptimizer::new(adam, default_scaler());
    let with = masters.into_bytes().unwrap();
    let error = refused(&mut adam, |adam| adam.from_bytes(with));
    is_error(&error, "ForeignRecord", []);

    masters.from_bytes(adam.into_bytes().unwrap()).unwrap();
    assert_eq!(contents(&mut masters), contents(&mut adam));
    let mut masters = masters.into_inner();
    let half = to_half(plain, FloatDType::F16, &[]);
    step(&mut masters, 0.01, half, 1.0);
    let stepped = state(&masters);
    let times = (stepped.scalars.iter()).filter(|(name, _)| name.ends_with("inner.momentum.time"));
    let times: Vec<_> = times.map(|(_, time)| usize::try_from(*time)).collect();
    assert_eq!(times, [Ok(2); 6]);
}

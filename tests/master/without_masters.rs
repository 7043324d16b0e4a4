//! Half-precision parameters without masters, where asked for: with a state that Burn cannot load. States with masters and without.

use super::support::*;

/// Burn builds the state of Adam in the device's default dtype, f32: the next step would panic. It is not even saved.
#[test]
fn the_half_precision_state_of_adam_cannot_be_resumed() {
    let narrow = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let scaler = GradScaler::new(narrow).unwrap();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler);
    let mut resumed = optim.clone();
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
    let scaler = || GradScaler::new(at_scale(16.0)).unwrap();
    let mut masters = Trial::new(ScaledOptimizer::new(adam(), scaler())).with_dtype(DType::F16);
    let mut plain = Trial::new(ScaledOptimizer::new(AdamConfig::new().init(), scaler()));
    masters.step(ONES);
    plain.step(ONES);
    let with = masters.optim.into_bytes().unwrap();
    let error = refused(&mut plain.optim, |optim| optim.from_bytes(with));
    is_error(&error, "ForeignRecord", []);

    let without = plain.optim.into_bytes().unwrap();
    masters.optim.from_bytes(without).unwrap();
    assert_eq!(contents(&mut masters.optim), contents(&mut plain.optim));
    masters.step(ONES);
    let stepped = state(masters.optim.optimizer()).scalars.into_iter();
    let times = stepped.filter(|(name, _)| name.ends_with("inner.momentum.time"));
    let times: Vec<_> = times.map(|(_, time)| usize::try_from(time)).collect();
    assert_eq!(times, [Ok(2); 2]);
}

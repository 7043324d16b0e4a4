//! A disabled scaler passes everything.

use burn_amp_tests::prelude::*;

use crate::support::{Model, unscaled, values_of};

fn disabled() -> GradScaler {
    let config = GradScalerConfig::new()
        .with_enabled(false)
        .with_growth_interval(1)
        .with_max_consecutive_skips(Some(0));
    config.init().unwrap()
}

#[test]
fn the_scale_is_one() {
    let scaler = disabled();
    assert!(!scaler.is_enabled());
    assert_eq!(scaler.loss_scale(), 1.0);
    let loss = Tensor::<1>::from_floats([0.1], &Device::flex());
    let value: f32 = scaler.scale(loss).into_scalar();
    assert_eq!(value, 0.1);
}

/// As PyTorch's: what is not used need not be right, and a record of it is read again.
#[test]
fn other_settings_are_not_looked_at() {
    let out_of_range = [
        GradScalerConfig::new().with_init_scale(f64::NAN),
        GradScalerConfig::new().with_growth_factor(0.5),
        GradScalerConfig::new().with_growth_interval(0),
        GradScalerConfig::new().with_hysteresis(0),
        GradScalerConfig::new().with_min_scale(Some(1e9)),
        GradScalerConfig::new().with_warmup_levels(0),
    ];
    for config in out_of_range {
        assert!(config.init().is_err());
        let config = config.with_enabled(false);
        let mut scaler = config.init().unwrap();
        assert_eq!((scaler.is_enabled(), scaler.loss_scale()), (false, 1.0));
        scaler.load_record(scaler.to_record()).unwrap();
        // With these settings, and in a program that scales.
        let record = scaler.to_record().with_settings();
        GradScalerConfig::new()
            .init()
            .unwrap()
            .load_record(record)
            .unwrap();
        MixedPrecision::f16().with_scaler(config).unwrap();
    }
}

#[test]
fn gradients_pass_in_every_dtype() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let model = Model::of(dtype);
        let mut scaler = disabled();
        let grads = unscaled(&scaler, model.gradients(|_| 0.5), &model);
        assert_eq!(grads.get::<4>(model.kernel.id).unwrap().dtype(), dtype);
        assert_eq!(values_of::<4>(grads.params(), model.kernel.id), [0.5; 36]);
        // Only their number is known: nothing was measured.
        let status = grads.status();
        assert_eq!((status.gradients(), status.elements()), (3, 0));
        assert!(!status.has_overflow());

        let mut sgd = SgdConfig::new().init();
        let model = scaler.try_step(&mut sgd, 0.5, model, grads).unwrap();
        assert_eq!(model.values(), [0.75; Model::VALUES], "{dtype:?}");
    }
}

#[test]
fn overflows_reach_the_optimizer() {
    let mut scaler = disabled();
    let mut sgd = SgdConfig::new().init();
    let mut model = Model::new();
    for step in 1..4 {
        let grads = scaler.unscale(model.overflowing(1.0), &model).unwrap();
        model = scaler.try_step(&mut sgd, 0.5, model, grads).unwrap();
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
        assert_eq!(scaler.counters().steps(), step);
    }
    assert_eq!(model.values()[9], f64::NEG_INFINITY);
    assert_eq!(model.values()[8], 0.25);
    assert_eq!(scaler.counters().skipped(), 0);
    // Three clean steps with an interval of 1 would have raised it.
    assert_eq!(scaler.schedule().scale(), 65536.0);
    assert_eq!(scaler.loss_scale(), 1.0);
}

#[test]
fn the_scaled_optimizer_is_its_inner_one() {
    let start = Model::new();
    let loss = |model: &Model| (model.vector.val() * model.vector.val()).sum() * 0.3;
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), disabled());
    let mut plain = SgdConfig::new().init();
    let (mut a, mut b) = (start.clone(), start);
    for _ in 0..4 {
        let grads = optim.backward(loss(&a), &a);
        assert_eq!(grads.loss_scale(), 1.0);
        a = optim.step(0.1, a, grads);
        let grads = loss(&b).backward();
        let grads = burn::optim::GradientsParams::from_grads(grads, &b);
        b = plain.step(0.1, b, grads);
    }
    assert_eq!(a.values(), b.values());
    assert_ne!(a.values()[0], 1.0);
}

//! A disabled scaler passes everything.

use super::support::*;

fn disabled() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_enabled(false)
        .with_growth_interval(1)
        .with_max_consecutive_skips(Some(0))
}

/// As PyTorch's: what is not used need not be right, and a record of it is read again.
#[test]
fn other_settings_are_not_looked_at() {
    let new = GradScalerConfig::new;
    for config in [
        new().with_init_scale(f64::NAN),
        new().with_growth_factor(0.5),
        new().with_growth_interval(0),
        new().with_hysteresis(0),
        new().with_min_scale(Some(1e9)),
        new().with_warmup_levels(0),
    ] {
        assert!(config.init().is_err());
        let config = config.with_enabled(false);
        let mut scaler = config.init().unwrap();
        assert_eq!((scaler.is_enabled(), scaler.loss_scale()), (false, 1.0));
        scaler.load_record(scaler.to_record()).unwrap();
        // With these settings, and in a program that scales.
        let record = scaler.to_record().with_settings();
        new().init().unwrap().load_record(record).unwrap();
        MixedPrecision::f16().with_scaler(config).unwrap();
    }
}

#[test]
fn gradients_pass_in_every_dtype() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let mut run = Trial::of(Model::of(dtype), disabled());
        let loss = Tensor::<2>::full([1, 2], 0.75, (&Device::flex(), dtype));
        let scaled = run.scaler.scale(loss.clone());
        assert_eq!(scaled.to_data(), loss.to_data(), "{dtype:?}");
        let grads = run.unscaled(run.model.gradients(|_| 0.5));
        let kernel = run.model.kernel.id;
        assert_eq!(grads.get::<4>(kernel).unwrap().dtype(), dtype);
        assert_eq!(values_of::<4>(grads.params(), kernel), [0.5; 36]);
        // Only their number is known: nothing was measured.
        let status = grads.status();
        assert_eq!((status.gradients(), status.elements()), (3, 0));
        assert!(!status.has_overflow());

        run.take(grads).unwrap();
        assert_eq!(run.model.values(), [0.75; Model::VALUES], "{dtype:?}");
    }
}

/// As the scaler alone.
#[test]
fn the_scaled_optimizer_is_its_inner_one() {
    // The second has no settings of a scale at all.
    let plain = ScaledOptimizer::from(SgdConfig::new().init());
    for mut optim in [sgd_under(disabled()), plain] {
        let mut model = Model::new();
        for (factor, expected) in [(3.0, 0.25), (-1.0, 0.5), (f32::INFINITY, f64::NEG_INFINITY)] {
            let grads = optim.backward((model.vector.val() * factor).sum(), &model);
            assert_eq!(grads.loss_scale(), 1.0);
            model = optim.step(0.25, model, grads);
            assert_eq!(model.values()[..5], [expected; 5]);
        }
    }
}

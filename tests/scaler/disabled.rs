//! A disabled scaler passes everything.

use burn_amp_tests::{prelude::*, trial::*};

fn disabled() -> GradScalerConfig {
    let config = GradScalerConfig::new().with_enabled(false);
    let config = config.with_growth_interval(1);
    config.with_max_consecutive_skips(Some(0))
}

/// A record with settings that are not used, and not right, is read again, here and in a program that scales.
#[test]
fn other_settings_are_not_looked_at() {
    let config = disabled().with_growth_factor(0.5);
    let mut scaler = config.init().unwrap();
    scaler.load_record(scaler.to_record()).unwrap();
    let record = scaler.to_record().with_settings();
    let mut other = default_scaler();
    other.load_record(record).unwrap();
    MixedPrecision::f16().with_scaler(config).unwrap();
}

#[test]
fn gradients_pass_in_every_dtype() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let mut run = ByHand::of(Pair::new([0.0; 10], &flex(), dtype), disabled());
        let loss = Tensor::<2>::full([1, 2], 0.75, (&Device::flex(), dtype));
        let scaled = run.scaler.scale(loss.clone());
        assert_eq!(scaled.to_data(), loss.to_data(), "{dtype:?}");
        let grads = run.unscaled(ONES);
        let weight = grads.get::<2>(run.model.weight.id).unwrap();
        assert_eq!(weight.dtype(), dtype);
        // Only their number is known: nothing was measured.
        let status = grads.status();
        assert_eq!((status.gradients(), status.elements()), (2, 0));
        assert!(!status.has_overflow());
        run.take(grads).unwrap();
        assert_eq!(run.model.values(), [-1.0; 10], "{dtype:?}");
    }
}

//! A disabled scaler passes everything.

use burn_amp_tests::{prelude::*, trial::*};

fn disabled() -> GradScalerConfig {
    let config = GradScalerConfig::new().with_enabled(false);
    let config = config.with_growth_interval(1);
    config.with_max_consecutive_skips(Some(0))
}

/// As they are when they are asked for, and whatever is found, they are stepped with.
#[test]
fn a_program_that_asks_gets_a_measure() {
    let mut run = ByHand::new(disabled());
    let grads = run.unscaled(norm(1.0));
    let doubled = grads.clone().mul_scalar(2.0);
    let sum = doubled.clone() + grads.clone();
    let found = [&grads, &doubled, &sum].map(UnscaledGradients::status);
    let found = found.map(|status| (status.norm(), status.max_abs()));
    assert_eq!(found, [1.0, 2.0, 3.0].map(|one| (one, one)));
    let bad = run.unscaled(BAD);
    assert!(bad.has_overflow() && (grads.clone() + bad.clone()).has_overflow());
    assert_eq!(bad.status().overflow_parameter(), Some("bias"));
    // Asked again after a change.
    let mut changed = grads;
    assert!(!changed.has_overflow());
    *changed.params_mut() = run.model.plain(BAD);
    assert!(changed.has_overflow());
    run.take(bad).unwrap();
    assert_eq!(run.counters().stepped(), 1);
    assert!(run.model.values().iter().any(|value| !value.is_finite()));
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
        // Measured because it is asked for; those of the last step were not.
        let status = grads.status();
        assert_eq!((status.gradients(), status.elements()), (2, 10));
        assert_eq!((status.max_abs(), status.has_overflow()), (1.0, false));
        assert!(run.scaler.last_status().is_none());
        run.take(grads).unwrap();
        assert_eq!(run.model.values(), [-1.0; 10], "{dtype:?}");
    }
}

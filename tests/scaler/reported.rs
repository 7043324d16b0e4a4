//! Each call reports what it has done: the outcomes are compared in `tests/oracle` and `iterations.rs`.

use burn_amp_tests::{prelude::*, trial::*};

/// A call that is refused has done nothing, and reports nothing of the one before. Nor does one that ends the run for gradients that were dropped
/// before.
#[test]
fn what_has_done_nothing_reports_nothing() {
    let mut run = Trial::new(sgd_under(at_scale(1024.0)));
    run.step(ONES);
    let grads = run.scaled(ONES);
    let refused = run.optim.try_step(f64::NAN, run.model.clone(), grads);
    assert_eq!((refused.is_err(), run.outcome()), (true, None));
    let ending: [fn(&mut Trial) -> bool; 3] = [
        |run| run.refused(ONES).to_string().contains("1 skipped"),
        |run| run.optim.try_flush(0.1, run.model.clone()).is_err(),
        |run| run.optim.discard(run.scaled(ONES)).is_err(),
    ];
    for ends in ending {
        let config = at_scale(1024.0).with_max_consecutive_skips(Some(0));
        let mut run = Trial::new(sgd_under(config));
        run.step(ONES);
        drop(run.unscaled(BAD));
        assert!(run.outcome().is_some());
        assert_eq!((ends(&mut run), run.outcome()), (true, None));
    }
}

/// In a window that is tested as a whole nothing is known of a micro-batch; a flush without gradients has measured none.
#[test]
fn the_status_is_that_of_the_call() {
    let mut run = Trial::new(sgd_under(at_scale(1024.0)).with_accumulation(2));
    for _ in 0..2 {
        run.step(ONES);
        assert!(run.optim.scaler().last_status().is_none());
        run.step(BAD);
        assert!(run.status().has_overflow());
    }
    run.flush();
    assert!(run.optim.scaler().last_status().is_none());
}

#[test]
fn the_log_names_the_overflow_of_every_optimizer() {
    let mut run = ByHand::at(64.0);
    let other = [LinearConfig::new(2, 2).init(&flex())];
    let messages = captured(Level::Info, || {
        run.step(BAD).unwrap();
        let grads = gradients(&other, 0, f32::NAN, FloatDType::F32);
        let grads = scaled_by_hand(&run.scaler, grads);
        let grads = run.scaler.unscale(grads, &other).unwrap();
        let mut sgd = SgdConfig::new().init();
        run.scaler.step(&mut sgd, 0.1, other, grads);
        run.scaler.update().unwrap();
    });
    let expected = "step skipped: gradients overflow, first in `bias` and in `0.weight`, at loss scale 64, next 32";
    assert_eq!(messages, [expected]);
}

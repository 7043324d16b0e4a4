//! What the log says of an iteration: a skip is never invisible.

use burn_amp_tests::{prelude::*, trial::*};

/// Whichever way the iteration ends. Extreme scales are printed shortly.
#[test]
fn a_skipped_step_is_logged() {
    type End = fn(&mut GradScaler) -> Result<Option<StepOutcome>, AmpError>;
    let half: End = |scaler| scaler.update_to(32768.0);
    let extreme = "1.2676506002282294e30, next 6.338253001141147e29";
    for (scale, end, scales) in [
        (65536.0, GradScaler::update as End, "65536, next 32768"),
        (65536.0, half, "65536, next 32768"),
        (2f64.powi(100), GradScaler::update, extreme),
    ] {
        let skipped = "step skipped: gradients overflow, first in `bias`, at loss scale";
        let mut run = ByHand::at(scale);
        for (values, expected) in [(BAD, vec![format!("{skipped} {scales}")]), (ONES, vec![])] {
            let messages = captured(Level::Info, || {
                run.step(values).unwrap();
                assert!(end(&mut run.scaler).unwrap().is_some());
            });
            assert_eq!(messages, expected);
        }
    }
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

#[test]
fn a_dropped_micro_batch_is_logged_as_such() {
    let optim = sgd_under(at_scale(4096.0)).with_accumulation(windows(2, true));
    let mut run = Trial::new(optim);
    let messages = captured(Level::Info, || run.step(BAD));
    let parts = ["micro-batch dropped", "bias", "4096", "2048"];
    says(only(&messages), parts);
}

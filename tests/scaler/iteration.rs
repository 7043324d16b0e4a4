//! One iteration: `step`, then `update` once.

use burn_amp_tests::{prelude::*, trial::*};

fn assert_update_missing(error: AmpError, parameter: &str) {
    let called = format!("`step` has already been called for parameter `{parameter}`");
    is_error(&error, "UpdateMissing", [&called, "update"]);
}

#[test]
fn a_second_step_without_update_is_refused() {
    for overflow in [false, true] {
        let mut run = ByHand::at(1024.0);
        run.step(values_that(overflow)).unwrap();
        let state = |run: &ByHand| (run.counters(), run.model.values());
        let before = state(&run);
        for again in [ONES, BAD] {
            assert_update_missing(run.step(again).unwrap_err(), "weight");
            let observed = run.scaler.observe(&run.unscaled(again));
            assert_update_missing(observed.unwrap_err(), "weight");
        }
        // Any parameter in common is a second step for it, be it the first of the module or not.
        let mut grads = run.model.plain(ONES);
        drop(grads.remove::<2>(run.model.weight.id));
        let error = run.take(run.unscale(grads)).unwrap_err();
        assert_update_missing(error, "bias");
        assert_eq!(state(&run), before);
        // What it reports is not of the step before.
        assert_eq!(run.outcome(), None);

        // After the update it is welcome; the refused ones have left no trace.
        let outcome = run.scaler.update().unwrap();
        assert_eq!(outcome, Some(burn_amp_tests::outcome(overflow)));
        let observed = run.scaler.observe(&run.unscaled(ONES));
        assert_eq!(observed, Ok(StepOutcome::Stepped));
    }
}

/// A skip is never invisible, whichever way the iteration ends. Extreme scales are printed shortly.
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
fn a_refused_update_to_does_not_end_the_iteration() {
    let mut run = ByHand::new(at_scale(512.0).with_max_scale(Some(65536.0)));
    // Without a step it sets the scale.
    assert_eq!(run.scaler.update_to(65536.0).unwrap(), None);
    run.step(BAD).unwrap();
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 131072.0] {
        let error = run.scaler.update_to(bad).unwrap_err();
        is_error(&error, "InvalidValue", []);
    }
    assert_eq!(run.scale(), 65536.0);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(run.scale(), 32768.0);
}

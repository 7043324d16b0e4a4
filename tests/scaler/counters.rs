//! What the scaler remembers of its steps.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{only, says};
use log::Level;

use crate::support::{Model, captured, scaler};

fn step(scaler: &mut GradScaler, overflow: bool) {
    let model = Model::new();
    let scale = scaler.loss_scale();
    let grads = model.scaled(scale, overflow);
    let grads = scaler.unscale(grads, &model).unwrap();
    scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads);
    scaler.update().unwrap();
}

#[test]
fn nothing_at_first() {
    let scaler = scaler(1024.0);
    assert_eq!(scaler.counters(), StepCounters::default());
    assert_eq!(scaler.counters().skip_rate(), 0.0);
    assert_eq!(scaler.last_outcome(), None);
    assert_eq!(scaler.last_status(), None);
}

#[test]
fn steps_and_skips_are_counted() {
    let mut scaler = scaler(1024.0);
    // Overflow or not, and skips in a row after it.
    let steps = [
        (false, 0),
        (true, 1),
        (true, 2),
        (false, 0),
        (true, 1),
        (false, 0),
        (false, 0),
        (true, 1),
    ];
    let mut skipped = 0;
    for (count, (overflow, consecutive)) in steps.into_iter().enumerate() {
        step(&mut scaler, overflow);
        skipped += u64::from(overflow);
        let counters = scaler.counters();
        assert_eq!(counters.steps(), count as u64 + 1);
        assert_eq!(counters.skipped(), skipped);
        assert_eq!(counters.stepped(), counters.steps() - skipped);
        assert_eq!(counters.consecutive_skips(), consecutive);
        let outcome = scaler.last_outcome().unwrap();
        assert_eq!(
            (outcome.is_skipped(), outcome.is_stepped()),
            (overflow, !overflow)
        );
        let status = scaler.last_status().unwrap();
        assert_eq!(status.has_overflow(), overflow);
        assert_eq!(status.overflow_parameter(), overflow.then_some("matrix"));
        assert_eq!(status.max_abs(), 0.5);
    }
    assert_eq!(scaler.counters().skip_rate(), 0.5);
}

#[test]
fn a_clone_counts_for_itself() {
    let mut scaler = scaler(1024.0);
    step(&mut scaler, true);
    let before = (scaler.schedule(), scaler.counters());
    let mut clone = scaler.clone();
    assert_eq!(clone.counters(), before.1);

    step(&mut clone, true);
    step(&mut clone, false);
    clone.set_growth_interval(7).unwrap();
    assert_eq!((scaler.schedule(), scaler.counters()), before);
    assert_eq!(scaler.last_outcome(), Some(StepOutcome::Skipped));
    assert_eq!(clone.counters().steps(), 3);

    step(&mut scaler, false);
    assert_eq!(clone.counters().steps(), 3);
    assert_eq!((scaler.loss_scale(), clone.loss_scale()), (512.0, 256.0));
}

/// A clone in the middle of an iteration has the same iteration to end.
#[test]
fn a_clone_takes_its_iteration_along() {
    let mut scaler = scaler(1024.0);
    let model = Model::new();
    let grads = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
    scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads);
    let mut clone = scaler.clone();
    assert_eq!(clone.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!((scaler.loss_scale(), clone.loss_scale()), (1024.0, 512.0));
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
}

/// A skip is never invisible: the log tells the parameter, the scale and the next one.
#[test]
fn a_skip_is_logged() {
    let mut scaler = scaler(1024.0);
    let messages = captured(Level::Info, || step(&mut scaler, true));
    says(only(&messages), ["skipped", "`matrix`", "1024", "512"]);
    let messages = captured(Level::Info, || step(&mut scaler, false));
    assert!(messages.is_empty(), "{messages:?}");
}

/// `reset` starts afresh and keeps the settings.
#[test]
fn a_reset_starts_afresh() {
    let config = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(2)
        .with_max_consecutive_skips(Some(3));
    let mut scaler = config.init().unwrap();
    for overflow in [true, false, true] {
        step(&mut scaler, overflow);
    }
    assert_ne!(scaler.loss_scale(), 1024.0);
    scaler.reset();
    assert_eq!(scaler.schedule(), config.init().unwrap().schedule());
    assert_eq!(scaler.counters(), StepCounters::default());
    assert_eq!((scaler.last_outcome(), scaler.last_status()), (None, None));
    assert_eq!(scaler.config().max_consecutive_skips, Some(3));
    assert_eq!(scaler.growth_interval(), 2);
}

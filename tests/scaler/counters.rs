//! What the scaler remembers of its steps.

use super::support::*;

#[test]
fn steps_and_skips_are_counted() {
    let mut run = Trial::at(1024.0);
    assert_eq!(run.scaler.counters().skip_rate(), 0.0);
    let mut skipped = 0;
    // Skips in a row after each step; one that overflows has some.
    for (count, consecutive) in [0, 1, 2, 0, 1, 0, 0, 1].into_iter().enumerate() {
        let overflow = consecutive > 0;
        run.iterate(overflow);
        skipped += u64::from(overflow);
        let counters = run.scaler.counters();
        assert_eq!(counters.steps(), count as u64 + 1);
        assert_eq!(counters.skipped(), skipped);
        assert_eq!(counters.stepped(), counters.steps() - skipped);
        assert_eq!(counters.consecutive_skips(), consecutive);
        let outcome = run.outcome().unwrap();
        let found = (outcome.is_skipped(), outcome.is_stepped());
        assert_eq!(found, (overflow, !overflow));
        let status = run.scaler.last_status().unwrap();
        assert_eq!(status.has_overflow(), overflow);
        assert_eq!(status.overflow_parameter(), overflow.then_some("matrix"));
        assert_eq!(status.max_abs(), 0.5);
    }
    assert_eq!(run.scaler.counters().skip_rate(), 0.5);
}

#[test]
fn a_clone_counts_for_itself() {
    let mut run = Trial::at(1024.0);
    run.iterate(true);
    let state = |run: &Trial| (run.scaler.schedule(), run.scaler.counters());
    let before = state(&run);
    let mut clone = Trial::at(1.0);
    clone.scaler = run.scaler.clone();
    assert_eq!(state(&clone), before);

    clone.iterations("x.");
    clone.scaler.set_growth_interval(7).unwrap();
    assert_eq!(state(&run), before);
    assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
    assert_eq!(clone.scaler.counters().steps(), 3);

    run.iterate(false);
    assert_eq!(clone.scaler.counters().steps(), 3);
    assert_eq!((run.scale(), clone.scale()), (512.0, 256.0));
}

/// A clone in the middle of an iteration has the same iteration to end.
#[test]
fn a_clone_takes_its_iteration_along() {
    let mut run = Trial::at(1024.0);
    run.step(true).unwrap();
    let mut clone = run.scaler.clone();
    assert_eq!(clone.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!((run.scale(), clone.loss_scale()), (1024.0, 512.0));
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
}

/// `reset` starts afresh and keeps the settings.
#[test]
fn a_reset_starts_afresh() {
    let config = at_scale(1024.0)
        .with_growth_interval(2)
        .with_max_consecutive_skips(Some(3));
    let mut run = Trial::new(config);
    run.iterations("x.x");
    assert_ne!(run.scale(), 1024.0);
    let mut scaler = run.scaler;
    scaler.reset();
    assert_eq!(scaler.schedule(), config.init().unwrap().schedule());
    assert_eq!(scaler.counters(), StepCounters::default());
    assert_eq!((scaler.last_outcome(), scaler.last_status()), (None, None));
    assert_eq!(scaler.config().max_consecutive_skips, Some(3));
    assert_eq!(scaler.growth_interval(), 2);
}

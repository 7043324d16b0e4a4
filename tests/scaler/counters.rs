//! What the scaler remembers of its steps.

use burn_amp_tests::{prelude::*, trial::*};

#[test]
fn steps_and_skips_are_counted() {
    let mut run = ByHand::at(1024.0);
    assert_eq!(run.counters().skip_rate(), 0.0);
    let mut skipped = 0;
    // Skips in a row after each step; one that overflows has some.
    for (count, row) in [0, 1, 2, 0, 1, 0, 0, 1].into_iter().enumerate() {
        let overflow = row > 0;
        let outcome = run.try_iterate(values_that(overflow)).unwrap().unwrap();
        let found = (outcome.is_skipped(), outcome.is_stepped());
        assert_eq!(found, (overflow, !overflow));
        assert_eq!(run.outcome(), Some(outcome));
        skipped += u64::from(overflow);
        let (counters, steps) = (run.counters(), count as u64 + 1);
        let found = [counters.steps(), counters.skipped(), counters.stepped()];
        assert_eq!(found, [steps, skipped, steps - skipped]);
        assert_eq!(counters.consecutive_skips(), row);
        let status = run.scaler.last_status().unwrap();
        assert_eq!(status.overflow_parameter(), overflow.then_some("bias"));
        assert_eq!((status.has_overflow(), status.max_abs()), (overflow, 1.0));
    }
    assert_eq!(run.counters().skip_rate(), 0.5);
}

/// One in the middle of an iteration has the same iteration to end.
#[test]
fn a_clone_goes_its_own_way() {
    let mut run = ByHand::at(1024.0);
    run.step(BAD).unwrap();
    let mut clone = run.clone();
    let state = |run: &ByHand| (run.scaler.schedule(), run.counters(), run.outcome());
    let before = state(&run);
    assert_eq!(state(&clone), before);
    assert_eq!(clone.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    clone.iterations("x.");
    clone.scaler.set_growth_interval(7).unwrap();
    assert_eq!(state(&run), before);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    run.iterate(ONES);
    let steps = [&run, &clone].map(|run| (run.scale(), run.counters().steps()));
    assert_eq!(steps, [(512.0, 2), (256.0, 3)]);
}

#[test]
fn a_reset_starts_afresh() {
    let config = at_scale(1024.0)
        .with_growth_interval(2)
        .with_max_consecutive_skips(Some(3));
    let mut run = ByHand::new(config);
    run.iterations("x.x");
    assert_ne!(run.scale(), 1024.0);
    let mut scaler = run.scaler;
    scaler.reset();
    assert_eq!(scaler.schedule(), config.init().unwrap().schedule());
    assert_eq!(scaler.counters(), StepCounters::default());
    assert_eq!((scaler.last_outcome(), scaler.last_status()), (None, None));
    assert_eq!(scaler.config(), config);
}

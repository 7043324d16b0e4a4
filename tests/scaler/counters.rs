//! What the scaler remembers of its steps.

use burn_amp_tests::{prelude::*, trial::*};

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
    let config = at_scale(1024.0).with_growth_interval(2);
    let config = config.with_max_consecutive_skips(Some(3));
    let mut run = ByHand::new(config);
    assert_eq!(run.counters().skip_rate(), 0.0);
    run.iterations("x.x");
    assert_ne!(run.scale(), 1024.0);
    assert_eq!(run.counters().skip_rate(), 2.0 / 3.0);
    let mut scaler = run.scaler;
    scaler.reset();
    assert_eq!(scaler.schedule(), config.init().unwrap().schedule());
    assert_eq!(scaler.counters(), StepCounters::default());
    assert_eq!((scaler.last_outcome(), scaler.last_status()), (None, None));
    assert_eq!(scaler.config(), config);
}

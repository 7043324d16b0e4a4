//! Each call reports what it has done.

use StepOutcome::{Accumulated, Dropped, NoGradients, Skipped, Stepped};
use burn_amp_tests::{prelude::*, trial::*};

#[test]
fn each_call_reports_what_it_has_done() {
    let optim = sgd_under(at_scale(1024.0)).with_accumulation(windows(2, true));
    let mut run = Trial::new(optim);
    assert_eq!(run.outcome(), None);
    for (values, outcome) in [(ONES, Accumulated), (ONES, Stepped), (BAD, Dropped)] {
        run.step(values);
        assert_eq!(run.outcome(), Some(outcome));
        assert!(run.optim.scaler().last_status().is_some());
    }
    run.flush();
    assert_eq!(run.outcome(), Some(NoGradients));
    assert!(run.optim.scaler().last_status().is_none());
    run.optim.discard(run.scaled(ONES)).unwrap();
    assert_eq!(run.outcome(), Some(Dropped));

    // A call that is refused has done nothing, and reports nothing of the one before.
    let grads = run.scaled(ONES);
    let refused = run.optim.try_step(f64::NAN, run.model.clone(), grads);
    assert!(refused.is_err());
    assert_eq!(run.outcome(), None);

    // Nor does one that ends the run for gradients that were dropped before.
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
        assert!(ends(&mut run));
        assert_eq!(run.outcome(), None);
    }

    // What is returned is what is reported.
    let mut alone = ByHand::at(64.0);
    let nothing = alone.unscale(GradientsParams::new());
    assert_eq!(alone.scaler.observe(&nothing).unwrap(), NoGradients);
    assert_eq!(alone.outcome(), Some(NoGradients));
    let mut run = Trial::new(sgd_under(at_scale(1024.0)));
    run.step(BAD);
    assert_eq!(run.outcome(), Some(Skipped));
    run.take(GradientsParams::new());
    assert_eq!(run.outcome(), Some(NoGradients));
}

/// In a window that is tested as a whole nothing is known of a micro-batch.
#[test]
fn the_status_is_that_of_the_call() {
    let mut run = Trial::new(sgd_under(at_scale(1024.0)).with_accumulation(2));
    for _ in 0..2 {
        run.step(ONES);
        assert!(run.optim.scaler().last_status().is_none());
        run.step(BAD);
        assert!(run.status().has_overflow());
    }
}

//! A broken run ends: when, and what is said, is in `iterations.rs`.

use burn_amp_tests::{prelude::*, trial::*};

/// The error changes neither parameters nor optimizer state nor scale, and after a new scale the run goes on.
#[test]
fn the_run_can_go_on() {
    let scaler = at_scale(1024.0).with_max_consecutive_skips(Some(1));
    let adam = AdamConfig::new().init();
    let mut run = Trial::new(ScaledOptimizer::new(adam, GradScaler::new(scaler).unwrap()));
    let state = |run: &Trial| (burn_amp_tests::state(run.optim.optimizer()), run.values());
    run.step(ONES);
    run.step(BAD);
    let before = state(&run);
    assert!(!before.0.tensors.is_empty());
    for skips in 2..4 {
        let ends =
            format!("LossScaleExhausted {{ scale: 512.0, skips: {skips}, parameter: \"bias\"");
        let message = format!("still overflow at loss scale 512 after {skips} skipped steps");
        is_error(&run.refused(BAD), &ends, [&*message]);
        assert_eq!((run.scale(), state(&run) == before), (512.0, true));
        assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
    }
    assert_eq!((run.counters().steps(), run.counters().skipped()), (4, 3));

    run.optim.scaler_mut().set_loss_scale(64.0).unwrap();
    assert_eq!(run.counters().consecutive_skips(), 0);
    // The limit starts anew.
    run.step(BAD);
    assert_eq!((run.scale(), state(&run) == before), (32.0, true));
    run.step(ONES);
    let after = state(&run);
    assert!(after.0 != before.0 && after.1 != before.1);
}

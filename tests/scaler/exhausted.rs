//! A broken run ends, with an error that says where it broke: when is in `iterations.rs`.

use burn_amp_tests::{prelude::*, trial::*};

fn exhausted(scale: f32, skips: u64) -> AmpError {
    let parameter = "bias".to_string();
    AmpError::LossScaleExhausted {
        scale,
        skips,
        parameter,
    }
}

#[test]
fn it_says_where() {
    let message = "still overflow at loss scale 1024 after 1 skipped steps in a row; \
                   the first parameter whose gradient overflows is `bias`";
    says(&exhausted(1024.0, 1), [message]);
}

/// Gradients of zero have raised it, as in PyTorch; skips count from where it has worked.
#[test]
fn a_scale_far_above_where_it_has_worked_falls() {
    let config = at_scale(1024.0).with_growth_interval(1);
    // After a step at 1024, or from there on.
    for begins in [true, false] {
        let mut run = ByHand::new(config);
        let zeros = if begins { 80 } else { 81 };
        run.iterations(if begins { "." } else { "" });
        (0..zeros).for_each(|_| _ = run.iterate([0.0; 10]));
        assert_eq!(run.scale(), 2f32.powi(91));
        // One growth above 1024 is where every schedule tries.
        run.iterations(&"x".repeat(80));
        assert_eq!(
            (run.counters().consecutive_skips(), run.scale()),
            (80, 2048.0)
        );
        run.iterations(&"x".repeat(50));
        let scale = 2f32.powi(11 - 50);
        assert_eq!(run.step(BAD).unwrap_err(), exhausted(scale, 131));
    }
    // At a floor above it there is nowhere to fall to.
    let floor = config.with_min_scale(Some(1024.0));
    let floor = floor.with_backoff_factor(0.75);
    let mut run = ByHand::new(floor.with_max_consecutive_skips(Some(9)));
    run.iterations(".");
    run.scaler.set_loss_scale(8192.0).unwrap();
    run.iterations(&"x".repeat(14));
    run.step(BAD).unwrap_err();
}

/// The error changes neither parameters nor optimizer state nor scale, and after a new scale the run goes on.
#[test]
fn the_run_can_go_on() {
    let scaler = at_scale(1024.0).with_max_consecutive_skips(Some(1));
    let adam = AdamConfig::new().init();
    let mut run = Trial::new(ScaledOptimizer::new(adam, scaler.init().unwrap()));
    let state = |run: &Trial| (burn_amp_tests::state(run.optim.optimizer()), run.values());
    run.step(ONES);
    run.step(BAD);
    let before = state(&run);
    assert!(!before.0.tensors.is_empty());
    for skips in 2..4 {
        assert_eq!(run.refused(BAD), exhausted(512.0, skips));
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

/// Down at the floor of f32, too, the scale is exact, and is stored.
#[test]
fn the_lowest_scale() {
    let endless = at_scale(1024.0).with_max_consecutive_skips(None);
    let mut run = ByHand::new(endless);
    run.iterations(&"x".repeat(200));
    assert_eq!(run.unscaled(ONES).status().max_abs(), 1.0);
    let mut loaded = endless.init().unwrap();
    loaded.load_record(run.scaler.to_record()).unwrap();
    assert_eq!(loaded.schedule(), run.scaler.schedule());
}

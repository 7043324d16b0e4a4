//! A broken run ends, with an error that says where it broke.

use burn_amp_tests::{prelude::*, trial::*};

fn config() -> GradScalerConfig {
    at_scale(1024.0)
}

fn exhausted(scale: f32, skips: u64) -> AmpError {
    let parameter = "bias".to_string();
    AmpError::LossScaleExhausted {
        scale,
        skips,
        parameter,
    }
}

/// After some steps that overflow (x) or not, so many skips are allowed, and one more ends the run at this scale.
#[test]
fn where_a_run_of_overflows_ends() {
    let most = |max| config().with_max_consecutive_skips(Some(max));
    // `min_scale` only stops the backoff, as in Megatron-LM and jmp.
    let stops = |min| config().with_min_scale(Some(min));
    let floor = |min| stops(min).with_raise_error_at_min_scale(true);
    let tolerant = floor(1024.0).with_hysteresis(3);
    let refilled = tolerant.with_consecutive_hysteresis(true);
    // The scale without limits stays where it still has an inverse in f32.
    let endless = config().with_max_consecutive_skips(None);
    let endless = endless.with_raise_error_at_min_scale(true);
    for (name, config, before, skips, scale) in [
        ("no skip", most(0), "", 0, 1024.0),
        ("three skips", most(3), "", 3, 128.0),
        ("only in a row", most(1), "x.x.x.x.x.", 1, 16.0),
        ("by default", at_scale(65536.0), "", 50, 2f32.powi(-34)),
        ("a floor", stops(300.0), "", 50, 300.0),
        ("from the floor on", stops(1024.0), "x.x.", 50, 1024.0),
        // 1024, 512, then 300, which is above 256.
        ("at the floor", floor(300.0), "", 2, 300.0),
        ("at the floor at once", floor(1024.0), "", 0, 1024.0),
        ("reaching it is no end", floor(512.0), "x...", 0, 512.0),
        ("tolerated ones first", tolerant, "", 2, 1024.0),
        ("refilled", refilled, "xx.xx.xx.", 2, 1024.0),
        ("the floor of f32", endless, "", 137, 2f32.powi(-127)),
        // A static scale cannot be lowered: the limit on skips ends its run.
        ("static", most(4).with_dynamic(false), "", 4, 1024.0),
    ] {
        let mut run = ByHand::new(config);
        run.iterations(before);
        let mut iterate = || run.step(BAD).and_then(|()| run.scaler.update());
        let ends = |skips| iterate().err().map(|error| (skips, error));
        let end = (0..1000).find_map(ends).expect("1000 skips and no end");
        assert_eq!(end, (skips, exhausted(scale, skips + 1)), "{name}");
    }
    let message = "still overflow at loss scale 1024 after 1 skipped steps in a row; \
                   the first parameter whose gradient overflows is `bias`";
    says(&exhausted(1024.0, 1), [message]);
}

/// Gradients of zero have raised it, as in PyTorch; skips count from where it has worked.
#[test]
fn a_scale_far_above_where_it_has_worked_falls() {
    let config = config().with_growth_interval(1);
    // After a step at 1024, or from there on.
    for begins in [true, false] {
        let mut run = ByHand::new(config);
        if begins {
            run.iterate(ONES);
        }
        let zeros = if begins { 80 } else { 81 };
        (0..zeros).for_each(|_| _ = run.iterate([0.0; 10]));
        let top = f64::from(run.scale()).log2();
        assert_eq!(top, 91.0);
        // One growth above 1024 is where every schedule tries.
        (0..80).for_each(|_| _ = run.iterate(BAD));
        assert_eq!(run.counters().consecutive_skips(), 80);
        assert_eq!(run.scale(), 2048.0);
        (0..50).for_each(|_| _ = run.iterate(BAD));
        let scale = 2f32.powi(11 - 50);
        assert_eq!(run.step(BAD).unwrap_err(), exhausted(scale, 131));
    }
    // At a floor above it there is nowhere to fall to.
    let floor = config
        .with_min_scale(Some(1024.0))
        .with_backoff_factor(0.75);
    let mut run = ByHand::new(floor.with_max_consecutive_skips(Some(9)));
    run.iterate(ONES);
    run.scaler.set_loss_scale(8192.0).unwrap();
    let ends = |run: &mut ByHand| run.step(BAD).and_then(|()| run.scaler.update()).is_err();
    assert_eq!((0..100).find(|_| ends(&mut run)), Some(14));
}

/// Overflowing steps are skipped on and on; a static scale stays where it is whatever comes, a dynamic one at the floor of f32.
#[test]
fn without_a_limit_it_goes_on() {
    let endless = config().with_max_consecutive_skips(None);
    let fixed = endless.with_dynamic(false).with_growth_interval(1);
    for (config, lowest, tracker) in [(endless, 2f32.powi(-127), 2), (fixed, 1024.0, 0)] {
        let mut run = ByHand::new(config);
        (0..200).for_each(|_| _ = run.iterate(BAD));
        assert_eq!(run.scale(), lowest);
        assert_eq!(run.counters().consecutive_skips(), 200);
        // Down there, too, the scale is exact.
        assert_eq!(run.unscaled(ONES).status().max_abs(), 1.0);
        let mut loaded = config.init().unwrap();
        loaded.load_record(run.scaler.to_record()).unwrap();
        assert_eq!(loaded.schedule(), run.scaler.schedule());
        run.iterations(".x..");
        assert_eq!(run.counters().skipped(), 201);
        let found = (run.scale(), run.scaler.growth_tracker());
        assert_eq!(found, (lowest, tracker));
    }
}

/// The error changes neither parameters nor optimizer state nor scale, and after a new scale the run goes on.
#[test]
fn the_run_can_go_on() {
    let scaler = config().with_max_consecutive_skips(Some(1)).init().unwrap();
    let mut run = Trial::new(ScaledOptimizer::new(AdamConfig::new().init(), scaler));
    let state = |run: &Trial| (burn_amp_tests::state(run.optim.optimizer()), run.values());
    run.step(ONES);
    run.step(BAD);
    let before = state(&run);
    assert!(!before.0.tensors.is_empty());
    for skips in 2..4 {
        assert_eq!(run.refused(BAD), exhausted(512.0, skips));
        assert_eq!(run.scale(), 512.0);
        assert_eq!(state(&run), before);
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

/// The same by hand, where no `update` follows the error. Nor does what another optimizer did before in that iteration outlive it.
#[test]
fn the_iteration_of_the_error_is_over_for_all() {
    let config = config().with_max_consecutive_skips(Some(0));
    let mut run = ByHand::new(config.with_growth_interval(1));
    let mut sgd = SgdConfig::new().init();
    for skips in 1..3 {
        let grads = run.unscaled(ONES);
        run.scaler.step(&mut sgd, 0.1, run.model.clone(), grads);
        assert_eq!(run.step(BAD).unwrap_err(), exhausted(1024.0, skips));
        assert_eq!(run.scale(), 1024.0);
    }
    assert_eq!((run.scaler.update().unwrap(), run.scale()), (None, 1024.0));
    run.scaler.set_loss_scale(8.0).unwrap();
    run.iterate(ONES);
}

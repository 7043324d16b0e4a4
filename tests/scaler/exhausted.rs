//! A broken run ends, with an error that says where it broke.

use super::support::*;

fn config() -> GradScalerConfig {
    at_scale(1024.0)
}

/// Overflows until the run ends; how many steps were skipped before, and the error.
fn overflow_until_the_end(run: &mut Trial) -> (u64, AmpError) {
    let ends = |skips| run.try_iterate(true).err().map(|error| (skips, error));
    (0..1000).find_map(ends).expect("1000 skips and no end")
}

fn exhausted(scale: f32, skips: u64) -> AmpError {
    let parameter = "matrix".to_string();
    AmpError::LossScaleExhausted {
        scale,
        skips,
        parameter,
    }
}

fn ends_at_floor() -> GradScalerConfig {
    config().with_raise_error_at_min_scale(true)
}

/// After some steps that overflow (x) or not, so many skips are allowed, and one more ends the run at this scale.
#[test]
fn where_a_run_of_overflows_ends() {
    let defaults = GradScalerConfig::new();
    let most = |max| config().with_max_consecutive_skips(Some(max));
    let floor = |min| ends_at_floor().with_min_scale(Some(min));
    let tolerant = floor(1024.0).with_hysteresis(3);
    let refilled = tolerant.with_consecutive_hysteresis(true);
    // `min_scale` only stops the backoff, as in Megatron-LM and jmp.
    let stops = |min| config().with_min_scale(Some(min));
    for (name, config, before, skips, scale) in [
        ("no skip", most(0), "", 0, 1024.0),
        ("one skip", most(1), "", 1, 512.0),
        ("three skips", most(3), "", 3, 128.0),
        ("only in a row", most(1), "x.x.x.x.x.", 1, 16.0),
        ("by default", defaults, "", 50, 2f32.powi(-34)),
        ("a floor", stops(300.0), "", 50, 300.0),
        ("from the floor on", stops(1024.0), "x.x.", 50, 1024.0),
        // 1024, 512, then 300, which is above 256.
        ("at the floor", floor(300.0), "", 2, 300.0),
        ("at the floor at once", floor(1024.0), "", 0, 1024.0),
        ("reaching it is no end", floor(512.0), "x...", 0, 512.0),
        ("tolerated ones come first", tolerant, "", 2, 1024.0),
        ("refilled by a finite step", refilled, "xx.xx.xx.", 2, 1024.0),
        // A static scale cannot be lowered: the limit on skips ends its run.
        ("static", most(4).with_dynamic(false), "", 4, 1024.0),
    ] {
        let mut run = Trial::new(config);
        run.iterations(before);
        let found = overflow_until_the_end(&mut run);
        assert_eq!(found, (skips, exhausted(scale, skips + 1)), "{name}");
    }
    let message = "still overflow at loss scale 1024 after 1 skipped steps in a row; \
                   the first parameter whose gradient overflows is `matrix`";
    says(&exhausted(1024.0, 1), [message]);
}

/// Without a floor of its own, the scale stays where it still has an inverse in f32.
#[test]
fn without_limits_the_floor_is_that_of_f32() {
    let endless = config().with_max_consecutive_skips(None);
    let mut run = Trial::new(endless);
    (0..200).for_each(|_| run.iterate(true));
    assert_eq!(run.scale(), 2f32.powi(-127));
    let mut loaded = endless.init().unwrap();
    loaded.from_bytes(run.scaler.into_bytes().unwrap()).unwrap();
    assert_eq!(loaded.schedule(), run.scaler.schedule());

    let mut run = Trial::new(endless.with_raise_error_at_min_scale(true));
    let (skips, error) = overflow_until_the_end(&mut run);
    let scale = 2f32.powi(-127);
    assert_eq!((skips, error), (137, exhausted(scale, 138)));
    assert!((1.0 / f64::from(scale)) as f32 != f32::INFINITY);
    assert!((1.0 / f64::from(scale * 0.5)) as f32 == f32::INFINITY);
    // Down there, too, the scale is exact.
    let grads = run.model.gradients(|_| f64::from(scale));
    assert_eq!(run.unscaled(grads).status().max_abs(), 1.0);
}

/// Overflowing steps are skipped, and the scale stays where it is whatever comes.
#[test]
fn a_static_scale_without_a_limit_goes_on() {
    let config = config().with_dynamic(false).with_growth_interval(1);
    let mut run = Trial::new(config.with_max_consecutive_skips(None));
    (0..200).for_each(|_| run.iterate(true));
    assert_eq!(run.scaler.counters().consecutive_skips(), 200);
    for step in 0..20 {
        let overflow = step % 3 == 0;
        run.iterate(overflow);
        assert_eq!(run.outcome().unwrap().is_skipped(), overflow);
        assert_eq!((run.scale(), run.scaler.growth_tracker()), (1024.0, 0));
    }
}

/// The error changes neither parameters nor optimizer state nor scale, and after a new scale the run goes on.
#[test]
fn the_run_can_go_on() {
    let scaler = config().with_max_consecutive_skips(Some(1)).init().unwrap();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler);
    let mut model = Model::new();
    model = optim.step(0.1, model.clone(), model.clean(1024.0));
    model = optim.step(0.1, model.clone(), model.overflowing(1024.0));
    let state_of = |optim: &ScaledOptimizer| pack(optim.optimizer().into_bytes().unwrap()).tensors;
    let (state, values) = (state_of(&optim), model.values());
    assert!(!state.is_empty());

    for skips in 2..4 {
        let result = optim.try_step(0.1, model.clone(), model.overflowing(512.0));
        assert_eq!(result.unwrap_err().error, exhausted(512.0, skips));
        assert_eq!(optim.scaler().loss_scale(), 512.0);
        assert_eq!(state_of(&optim), state);
        assert_eq!(model.values(), values);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Skipped));
    }
    let counters = optim.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (4, 3));

    optim.scaler_mut().set_loss_scale(64.0).unwrap();
    assert_eq!(optim.scaler().counters().consecutive_skips(), 0);
    // The limit starts anew.
    model = optim.step(0.1, model.clone(), model.overflowing(64.0));
    assert_eq!(optim.scaler().loss_scale(), 32.0);
    assert_eq!(model.values(), values);
    model = optim.step(0.1, model.clone(), model.clean(32.0));
    assert_ne!(model.values(), values);
    assert_ne!(state_of(&optim), state);
}

/// The same by hand, where no `update` follows the error. Nor does what another optimizer did before in that iteration outlive it.
#[test]
fn the_iteration_of_the_error_is_over_for_all() {
    let config = config().with_max_consecutive_skips(Some(0));
    let mut run = Trial::new(config.with_growth_interval(1));
    let (mut sgd, other) = (SgdConfig::new().init(), Model::new());
    for skips in 1..3 {
        let grads = run.scaler.unscale(other.clean(1024.0), &other).unwrap();
        run.scaler.step(&mut sgd, 0.1, other.clone(), grads);
        assert_eq!(run.step(true).unwrap_err(), exhausted(1024.0, skips));
        assert_eq!(run.scale(), 1024.0);
    }
    assert_eq!(run.scaler.update().unwrap(), None);
    assert_eq!(run.scale(), 1024.0);
    run.scaler.set_loss_scale(8.0).unwrap();
    run.iterate(false);
}

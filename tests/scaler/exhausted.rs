//! A broken run ends, with an error that says where it broke.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;

use crate::support::{Model, unscaled};

fn config() -> GradScalerConfig {
    GradScalerConfig::new().with_init_scale(1024.0)
}

fn try_step(scaler: &mut GradScaler, overflow: bool) -> Result<(), AmpError> {
    let model = Model::new();
    let scale = scaler.loss_scale();
    let grads = model.scaled(scale, overflow);
    let grads = scaler.unscale(grads, &model).unwrap();
    scaler.try_step(&mut SgdConfig::new().init(), 0.1, model, grads)?;
    scaler.update().unwrap();
    Ok(())
}

/// Overflows until the run ends; how many steps were skipped before, and the error.
fn overflow_until_the_end(scaler: &mut GradScaler) -> (u64, AmpError) {
    for skips in 0..1000 {
        if let Err(error) = try_step(scaler, true) {
            return (skips, error);
        }
    }
    panic!("1000 skips and no end")
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

/// So many skips are allowed, and one more ends the run at this scale.
#[test]
fn where_a_run_of_overflows_ends() {
    let most = |max| config().with_max_consecutive_skips(Some(max));
    let floor = |min| ends_at_floor().with_min_scale(Some(min));
    let tolerant = floor(1024.0).with_hysteresis(3);
    for (name, config, skips, scale) in [
        ("no skip", most(0), 0, 1024.0),
        ("one skip", most(1), 1, 512.0),
        ("three skips", most(3), 3, 128.0),
        ("50 by default", GradScalerConfig::new(), 50, 2f32.powi(-34)),
        // `min_scale` only stops the backoff, as in Megatron-LM and jmp.
        ("a floor", config().with_min_scale(Some(300.0)), 50, 300.0),
        // 1024, 512, then 300, which is above 256.
        ("at the floor", floor(300.0), 2, 300.0),
        ("at the floor at once", floor(1024.0), 0, 1024.0),
        ("tolerated overflows come first", tolerant, 2, 1024.0),
        // A static scale cannot be lowered: the limit on skips ends its run.
        ("static", most(4).with_dynamic(false), 4, 1024.0),
    ] {
        let found = overflow_until_the_end(&mut config.init().unwrap());
        assert_eq!(found, (skips, exhausted(scale, skips + 1)), "{name}");
    }
}

#[test]
fn only_skips_in_a_row_count() {
    let mut scaler = config().with_max_consecutive_skips(Some(1)).init().unwrap();
    for _ in 0..5 {
        try_step(&mut scaler, true).unwrap();
        try_step(&mut scaler, false).unwrap();
    }
    assert_eq!(scaler.counters().skipped(), 5);
    try_step(&mut scaler, true).unwrap();
    assert!(try_step(&mut scaler, true).is_err());
}

/// Without an error at the floor a run goes on there.
#[test]
fn an_overflow_at_the_floor_is_skipped_as_any_other() {
    let config = config().with_min_scale(Some(1024.0));
    let mut scaler = config.init().unwrap();
    for overflow in [true, false, true, false] {
        try_step(&mut scaler, overflow).unwrap();
        assert_eq!(scaler.loss_scale(), 1024.0);
    }
}

#[test]
fn reaching_the_floor_is_not_the_end() {
    let config = ends_at_floor().with_min_scale(Some(512.0));
    let mut scaler = config.init().unwrap();
    try_step(&mut scaler, true).unwrap();
    assert_eq!(scaler.loss_scale(), 512.0);
    for _ in 0..3 {
        try_step(&mut scaler, false).unwrap();
    }
    assert!(try_step(&mut scaler, true).is_err());
}

#[test]
fn tolerated_overflows_are_refilled_by_a_clean_step() {
    let tolerant = ends_at_floor()
        .with_min_scale(Some(1024.0))
        .with_hysteresis(3)
        .with_consecutive_hysteresis(true);
    let mut scaler = tolerant.init().unwrap();
    for overflow in [true, true, false].repeat(3) {
        try_step(&mut scaler, overflow).unwrap();
    }
    let found = overflow_until_the_end(&mut scaler);
    assert_eq!(found, (2, exhausted(1024.0, 3)));
}

/// Without a floor of its own, the scale stays where it still has an inverse in f32.
#[test]
fn without_limits_the_floor_is_that_of_f32() {
    let endless = config().with_max_consecutive_skips(None);
    let mut scaler = endless.init().unwrap();
    for _ in 0..200 {
        try_step(&mut scaler, true).unwrap();
    }
    assert_eq!(scaler.loss_scale(), 2f32.powi(-127));

    let mut scaler = endless.with_raise_error_at_min_scale(true).init().unwrap();
    let (skips, error) = overflow_until_the_end(&mut scaler);
    let AmpError::LossScaleExhausted { scale, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(scale, 2f32.powi(-127));
    assert_eq!(skips, 137);
    assert!((1.0 / f64::from(scale)) as f32 != f32::INFINITY);
    assert!((1.0 / f64::from(scale * 0.5)) as f32 == f32::INFINITY);
    // Down there, too, the scale is exact.
    let model = Model::new();
    let grads = model.gradients(|_| f64::from(scale));
    let grads = unscaled(&scaler, grads, &model);
    assert_eq!(grads.status().max_abs(), 1.0);
}

/// Overflowing steps are skipped, and the scale stays where it is whatever comes.
#[test]
fn a_static_scale_without_a_limit_goes_on() {
    let config = config().with_dynamic(false).with_growth_interval(1);
    let mut endless = config.with_max_consecutive_skips(None).init().unwrap();
    for _ in 0..200 {
        try_step(&mut endless, true).unwrap();
    }
    assert_eq!(endless.counters().consecutive_skips(), 200);
    for step in 0..20 {
        let overflow = step % 3 == 0;
        try_step(&mut endless, overflow).unwrap();
        assert_eq!(endless.last_outcome().unwrap().is_skipped(), overflow);
        assert_eq!(
            (endless.loss_scale(), endless.growth_tracker()),
            (1024.0, 0)
        );
    }
}

#[test]
fn the_message_names_scale_count_and_parameter() {
    let mut scaler = config().with_max_consecutive_skips(Some(2)).init().unwrap();
    let (_, error) = overflow_until_the_end(&mut scaler);
    let message = error.to_string();
    says(&message, ["loss scale 256", "3 skipped steps", "`matrix`"]);
}

#[test]
#[should_panic(
    expected = "still overflow at loss scale 1024 after 1 skipped steps in a row; \
                           the first parameter whose gradient overflows is `matrix`"
)]
fn step_panics_with_the_message() {
    let mut scaler = config().with_max_consecutive_skips(Some(0)).init().unwrap();
    let model = Model::new();
    let grads = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
    scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads);
}

fn adam_state(optim: &ModuleOptimizer) -> Vec<(String, Vec<u8>)> {
    let bytes = optim.into_bytes().unwrap();
    let reader = burn_pack::Reader::from_bytes(bytes).unwrap();
    let tensors = reader.into_tensors().unwrap().into_iter();
    let mut state: Vec<_> = tensors
        .map(|tensor| {
            let (name, _, _, _, bytes) = tensor.into_parts().unwrap();
            (name, bytes.to_vec())
        })
        .collect();
    state.sort();
    state
}

/// The error changes neither parameters nor optimizer state nor scale, and after a new scale the run goes on.
#[test]
fn the_run_can_go_on() {
    let scaler = config().with_max_consecutive_skips(Some(1)).init().unwrap();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler);
    let mut model = Model::new();
    model = optim.step(0.1, model.clone(), model.clean(1024.0));
    model = optim.step(0.1, model.clone(), model.overflowing(1024.0));
    let state = adam_state(optim.optimizer());
    let values = model.values();
    assert!(!state.is_empty());

    for _ in 0..2 {
        let result = optim.try_step(0.1, model.clone(), model.overflowing(512.0));
        let error = result.unwrap_err().error;
        assert!(matches!(
            error,
            AmpError::LossScaleExhausted { scale: 512.0, .. }
        ));
        assert_eq!(optim.scaler().loss_scale(), 512.0);
        assert_eq!(adam_state(optim.optimizer()), state);
        assert_eq!(model.values(), values);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Skipped));
    }
    let counters = optim.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (4, 3));

    optim.scaler_mut().set_loss_scale(64.0).unwrap();
    assert_eq!(optim.scaler().counters().consecutive_skips(), 0);
    // The limit starts anew.
    model = optim
        .try_step(0.1, model.clone(), model.overflowing(64.0))
        .unwrap();
    assert_eq!(optim.scaler().loss_scale(), 32.0);
    assert_eq!(model.values(), values);
    model = optim
        .try_step(0.1, model.clone(), model.clean(32.0))
        .unwrap();
    assert_ne!(model.values(), values);
    assert_ne!(adam_state(optim.optimizer()), state);
}

/// The same by hand, where no `update` follows the error.
#[test]
fn the_iteration_of_the_error_is_over() {
    let mut scaler = config().with_max_consecutive_skips(Some(0)).init().unwrap();
    assert!(try_step(&mut scaler, true).is_err());
    assert_eq!(scaler.update().unwrap(), None);
    assert_eq!(scaler.loss_scale(), 1024.0);
    let model = Model::new();
    for _ in 0..2 {
        let grads = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
        let result = scaler.try_step(&mut SgdConfig::new().init(), 0.1, model.clone(), grads);
        let error = result.unwrap_err().error;
        assert!(matches!(error, AmpError::LossScaleExhausted { .. }));
    }
    scaler.set_loss_scale(8.0).unwrap();
    try_step(&mut scaler, false).unwrap();
}

/// Nor does what another optimizer did before in that iteration outlive it.
#[test]
fn the_iteration_of_the_error_is_over_for_all() {
    let config = config()
        .with_max_consecutive_skips(Some(0))
        .with_growth_interval(1);
    let mut scaler = config.init().unwrap();
    let mut sgd = SgdConfig::new().init();
    let (first, second) = (Model::new(), Model::new());
    for _ in 0..2 {
        let grads = scaler.unscale(first.clean(1024.0), &first).unwrap();
        scaler.step(&mut sgd, 0.1, first.clone(), grads);
        let grads = scaler.unscale(second.overflowing(1024.0), &second).unwrap();
        let result = scaler.try_step(&mut sgd, 0.1, second.clone(), grads);
        assert!(result.is_err());
        assert_eq!(scaler.loss_scale(), 1024.0);
    }
    assert_eq!(scaler.update().unwrap(), None);
    assert_eq!(scaler.loss_scale(), 1024.0);
}

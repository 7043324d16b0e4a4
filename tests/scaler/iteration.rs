//! One iteration: `step`, then `update` once.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;
use log::Level;

use crate::support::{Model, captured, gradient, scaler};

fn try_step(
    scaler: &mut GradScaler,
    model: &Model,
    grads: ScaledGradients,
) -> Result<Model, AmpError> {
    try_step_with(&mut SgdConfig::new().init(), scaler, model, grads)
}

fn try_step_with(
    sgd: &mut ModuleOptimizer,
    scaler: &mut GradScaler,
    model: &Model,
    grads: ScaledGradients,
) -> Result<Model, AmpError> {
    let grads = scaler.unscale(grads, model).unwrap();
    Ok(scaler.try_step(sgd, 0.5, model.clone(), grads)?)
}

#[test]
fn the_scale_moves_in_update_only() {
    let config = GradScalerConfig::new().with_growth_interval(1);
    let mut scaler = config.init().unwrap();
    let model = Model::new();

    try_step(&mut scaler, &model, model.overflowing(65536.0)).unwrap();
    assert_eq!(scaler.loss_scale(), 65536.0);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 32768.0);

    try_step(&mut scaler, &model, model.clean(32768.0)).unwrap();
    assert_eq!(scaler.loss_scale(), 32768.0);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
    assert_eq!(scaler.loss_scale(), 65536.0);
}

#[test]
fn update_without_a_step_does_nothing() {
    let config = GradScalerConfig::new().with_growth_interval(2);
    let mut scaler = config.init().unwrap();
    let model = Model::new();
    assert_eq!(scaler.update().unwrap(), None);

    try_step(&mut scaler, &model, model.clean(65536.0)).unwrap();
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
    let (schedule, counters) = (scaler.schedule(), scaler.counters());
    for _ in 0..3 {
        assert_eq!(scaler.update().unwrap(), None);
    }
    assert_eq!(scaler.schedule(), schedule);
    assert_eq!(scaler.counters(), counters);
    assert_eq!(scaler.last_outcome(), Some(StepOutcome::Stepped));
}

#[test]
fn a_second_step_without_update_is_refused() {
    for overflow in [false, true] {
        let mut scaler = scaler(1024.0);
        let mut sgd = SgdConfig::new().init();
        let model = Model::new();
        let first = model.scaled(1024.0, overflow);
        let model = try_step_with(&mut sgd, &mut scaler, &model, first).unwrap();
        let (counters, values) = (scaler.counters(), model.values());

        for grads in [model.clean(1024.0), model.overflowing(1024.0)] {
            let error = try_step_with(&mut sgd, &mut scaler, &model, grads).unwrap_err();
            let parameter = "vector".to_string();
            assert_eq!(error, AmpError::UpdateMissing { parameter });
            let message = error.to_string();
            assert!(message.contains("`vector`") && message.contains("update"));
        }
        assert_eq!(scaler.counters(), counters);
        assert_eq!(model.values(), values);
        // What it tells is not of the step before.
        assert_eq!(scaler.last_outcome(), None);

        // After the update it is welcome; the refused ones have left no trace.
        assert_eq!(scaler.update().unwrap().unwrap().is_skipped(), overflow);
        let scale = scaler.loss_scale();
        try_step_with(&mut sgd, &mut scaler, &model, model.clean(scale)).unwrap();
    }
}

/// Any parameter in common is a second step for it, be it the first of the module or not.
#[test]
fn a_second_step_of_some_parameters_is_refused() {
    let mut scaler = scaler(1.0);
    let mut sgd = SgdConfig::new().init();
    let model = Model::new();
    try_step_with(&mut sgd, &mut scaler, &model, model.clean(1.0)).unwrap();

    let mut grads = GradientsParams::new();
    gradient(&mut grads, model.matrix.id, [3, 4], DType::F32, |_| 1.0);
    let grads = scaled_by_hand(&scaler, grads);
    let error = try_step_with(&mut sgd, &mut scaler, &model, grads).unwrap_err();
    let parameter = "matrix".to_string();
    assert_eq!(error, AmpError::UpdateMissing { parameter });
}

#[test]
#[should_panic(expected = "`step` has already been called for parameter `vector`")]
fn step_panics_with_the_message() {
    let mut scaler = scaler(1.0);
    let mut sgd = SgdConfig::new().init();
    let model = Model::new();
    for _ in 0..2 {
        let grads = scaler.unscale(model.clean(1.0), &model).unwrap();
        scaler.step(&mut sgd, 0.5, model.clone(), grads);
    }
}

#[test]
fn update_to_sets_the_scale_whatever_the_outcome() {
    let config = GradScalerConfig::new().with_growth_interval(3);
    let mut scaler = config.init().unwrap();
    let model = Model::new();
    try_step(&mut scaler, &model, model.clean(65536.0)).unwrap();
    scaler.update().unwrap();
    assert_eq!(scaler.growth_tracker(), 1);

    try_step(&mut scaler, &model, model.overflowing(65536.0)).unwrap();
    assert_eq!(scaler.update_to(512.0).unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 512.0);
    assert_eq!(scaler.growth_tracker(), 1);

    try_step(&mut scaler, &model, model.clean(512.0)).unwrap();
    assert_eq!(scaler.update_to(768.0).unwrap(), Some(StepOutcome::Stepped));
    assert_eq!(scaler.loss_scale(), 768.0);
    assert_eq!(scaler.growth_tracker(), 1);
    assert_eq!(scaler.update_to(1024.0).unwrap(), None);
    assert_eq!(scaler.loss_scale(), 1024.0);
}

/// A skip is never invisible, whichever way the iteration ends.
#[test]
fn a_skipped_step_is_logged() {
    let model = Model::new();
    let ends: [fn(&mut GradScaler) -> Option<StepOutcome>; 2] = [
        |scaler| scaler.update().unwrap(),
        |scaler| scaler.update_to(32768.0).unwrap(),
    ];
    for end in ends {
        let mut scaler = GradScalerConfig::new().init().unwrap();
        let messages = captured(Level::Info, || {
            try_step(&mut scaler, &model, model.overflowing(65536.0)).unwrap();
            assert!(end(&mut scaler).is_some());
        });
        let expected =
            "step skipped: gradients overflow, first in `matrix`, at loss scale 65536, next 32768";
        assert_eq!(messages, [expected]);

        let messages = captured(Level::Info, || {
            try_step(&mut scaler, &model, model.clean(32768.0)).unwrap();
            assert!(end(&mut scaler).is_some());
        });
        assert_eq!(messages, [""; 0]);
    }
}

#[test]
fn a_refused_update_to_does_not_end_the_iteration() {
    let config = GradScalerConfig::new().with_max_scale(Some(65536.0));
    let mut scaler = config.init().unwrap();
    let model = Model::new();
    try_step(&mut scaler, &model, model.overflowing(65536.0)).unwrap();
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 131072.0] {
        let error = scaler.update_to(bad).unwrap_err();
        assert!(matches!(error, AmpError::InvalidValue { .. }), "{error}");
    }
    assert_eq!(scaler.loss_scale(), 65536.0);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 32768.0);
}

/// Gradients of a loss scaled earlier carry their scale.
#[test]
fn gradients_are_unscaled_by_the_scale_they_carry() {
    let mut scaler = scaler(1024.0);
    let model = Model::new();
    let loss = (model.vector.val() * 3.0).sum();
    let grads = scaler.backward(loss, &model);
    scaler.set_loss_scale(2.0).unwrap();
    let grads = scaler.unscale(grads, &model).unwrap();
    assert_eq!(grads.status().max_abs(), 3.0);
}

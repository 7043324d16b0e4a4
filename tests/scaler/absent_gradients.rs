//! Gradients that are not there: none at all, no parameters, frozen or unreached parameters, strangers.

use burn::nn::Relu;
use burn_amp_tests::prelude::*;

use crate::support::{Model, gradient, scaler, unscaled};

/// A scaler after an overflow and a clean step.
fn used() -> GradScaler {
    let config = GradScalerConfig::new().with_growth_interval(2);
    let mut scaler = config.init().unwrap();
    let model = Model::new();
    for grads in [model.overflowing(65536.0), model.clean(32768.0)] {
        let grads = scaler.unscale(grads, &model).unwrap();
        scaler.step(&mut SgdConfig::new().init(), 0.1, model.clone(), grads);
        scaler.update().unwrap();
    }
    assert_eq!(scaler.growth_tracker(), 1);
    scaler
}

fn check_nothing(status: &GradientStatus) {
    assert_eq!(*status, GradientStatus::default());
    assert_eq!((status.gradients(), status.elements()), (0, 0));
    assert_eq!((status.norm(), status.max_abs()), (0.0, 0.0));
    assert_eq!(status.zero_share(), 0.0);
    assert!(!status.has_overflow() && !status.is_all_zero());
    assert_eq!(status.overflow_parameter(), None);
}

/// The step is counted, and the scale learns nothing: no gradients are no evidence that it is fine.
fn check_empty_step<M: Module>(module: M, grads: GradientsParams) -> M {
    let mut scaler = used();
    let schedule = scaler.schedule();
    let grads = unscaled(&scaler, grads, &module);
    check_nothing(grads.status());
    let mut optim = SgdConfig::new().init();
    let module = scaler.step(&mut optim, 0.1, module, grads);
    assert_eq!(scaler.last_outcome(), Some(StepOutcome::NoGradients));
    assert_eq!(scaler.counters().steps(), 3);
    assert_eq!(scaler.counters().stepped(), 2);
    assert_eq!(scaler.update().unwrap(), None);
    assert_eq!(scaler.schedule(), schedule);
    module
}

#[test]
fn no_gradients() {
    let model = check_empty_step(Model::new(), GradientsParams::new());
    assert_eq!(model.values(), [1.0; Model::VALUES]);
    check_nothing(&inspect(&GradientsParams::new(), &model).unwrap());
}

/// Steps without gradients may follow each other without `update`: nothing was stepped.
#[test]
fn no_gradients_twice() {
    let mut scaler = used();
    let mut optim = SgdConfig::new().init();
    let mut model = Model::new();
    for _ in 0..2 {
        let grads = unscaled(&scaler, GradientsParams::new(), &model);
        model = scaler.try_step(&mut optim, 0.1, model, grads).unwrap();
    }
    assert_eq!(scaler.counters().stepped(), 3);
}

/// A run of overflows is not broken by a step without gradients.
#[test]
fn no_gradients_do_not_end_a_run_of_skips() {
    let mut scaler = scaler(1024.0);
    let mut optim = SgdConfig::new().init();
    let model = Model::new();
    for grads in [
        model.overflowing(1024.0).into_params(),
        GradientsParams::new(),
    ] {
        let grads = unscaled(&scaler, grads, &model);
        scaler.step(&mut optim, 0.1, model.clone(), grads);
        scaler.update().unwrap();
    }
    assert_eq!(scaler.counters().consecutive_skips(), 1);
}

#[test]
fn a_module_without_parameters() {
    check_empty_step(Relu::new(), GradientsParams::new());
}

/// An infinity in the gradient of a parameter of another module is no overflow here.
#[test]
fn gradients_of_strangers_are_dropped() {
    let stranger = Model::new();
    check_empty_step(Relu::new(), stranger.overflowing(1.0).into_params());
    let model = check_empty_step(Model::new(), stranger.overflowing(1.0).into_params());
    assert_eq!(model.values(), [1.0; Model::VALUES]);
}

#[test]
fn frozen_parameters_stay() {
    let mut model = Model::new();
    model.matrix = model.matrix.set_require_grad(false);
    let mut scaler = scaler(64.0);
    let momentum = Some(MomentumConfig::new());
    let mut optim = SgdConfig::new().with_momentum(momentum).init();

    for _ in 0..2 {
        let loss = (model.vector.val() * 2.0).sum()
            + (model.matrix.val() * 2.0).sum()
            + (model.kernel.val() * 2.0).sum();
        let grads = scaler.backward(loss, &model);
        let grads = scaler.unscale(grads, &model).unwrap();
        assert_eq!(grads.status().gradients(), 2);
        let paths: Vec<&str> = grads.parameters().map(|(path, _)| path).collect();
        assert_eq!(paths, ["vector", "kernel"]);
        model = scaler.step(&mut optim, 0.1, model, grads);
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
    }
    let values = model.values();
    assert_eq!(values[5..17], [1.0; 12]);
    assert!(values[..5].iter().chain(&values[17..]).all(|v| *v < 1.0));
    assert_eq!(optim.to_record().len(), 2);
    assert!(!model.matrix.is_require_grad());
    assert!(model.vector.is_require_grad());
}

#[test]
fn a_module_that_is_frozen_whole() {
    let model = Model::new().no_grad();
    let mut trained = Model::new();
    let loss = (model.vector.val() * trained.vector.val()).sum();
    let mut scaler = scaler(64.0);
    let grads = scaler.backward(loss, &model);
    assert!(grads.params().is_empty());
    let grads = scaler.unscale(grads, &model).unwrap();
    check_nothing(grads.status());
    let model = scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads);
    assert_eq!(scaler.update().unwrap(), None);
    assert_eq!(model.values(), [1.0; Model::VALUES]);

    // The other factor of the same loss is trained as ever.
    let loss = (model.vector.val() * trained.vector.val()).sum();
    let grads = scaler.backward(loss, &trained);
    let grads = scaler.unscale(grads, &trained).unwrap();
    trained = scaler.step(&mut SgdConfig::new().init(), 0.5, trained, grads);
    assert_eq!(trained.values()[..5], [0.5; 5]);
}

#[test]
fn parameters_that_the_loss_does_not_reach_stay() {
    let model = Model::new();
    let mut scaler = scaler(64.0);
    let mut optim = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init();
    let grads = scaler.backward((model.kernel.val() * 2.0).sum(), &model);
    let grads = scaler.unscale(grads, &model).unwrap();
    assert_eq!(grads.status().gradients(), 1);
    assert_eq!(grads.status().elements(), 36);
    assert!(grads.get::<1>(model.vector.id).is_none());
    let model = scaler.step(&mut optim, 0.25, model, grads);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
    let values = model.values();
    assert_eq!(values[..17], [1.0; 17]);
    assert_eq!(values[17..], [0.5; 36]);
    assert_eq!(optim.to_record().len(), 1);
}

/// Which parameters have a gradient may change from step to step.
#[test]
fn gradients_may_come_and_go() {
    let mut scaler = scaler(8.0);
    let mut optim = SgdConfig::new().init();
    let mut model = Model::new();
    let ids = [model.vector.id, model.matrix.id];
    for step in 0..4 {
        let mut grads = GradientsParams::new();
        if step % 2 == 0 {
            gradient(&mut grads, ids[0], Model::VECTOR, DType::F32, |_| 2.0);
        } else {
            gradient(&mut grads, ids[1], Model::MATRIX, DType::F32, |_| 2.0);
        }
        let grads = unscaled(&scaler, grads, &model);
        model = scaler.step(&mut optim, 1.0, model, grads);
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
    }
    let values = model.values();
    assert_eq!(values[..17], [0.5; 17]);
    assert_eq!(values[17..], [1.0; 36]);
}

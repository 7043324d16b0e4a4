//! Gradients that are not there: none at all, no parameters, frozen or unreached parameters, strangers, tensors without values.

use burn::nn::Relu;

use crate::support::*;
use crate::{
    status::assert_norm,
    support::{Model, Trial, gradient},
};

/// Trains this module, with a scaler after an overflow and a clean step.
fn used<M: Module>(model: M) -> Trial<M> {
    let mut before = Trial::new(GradScalerConfig::new().with_growth_interval(2));
    before.iterations("x.");
    assert_eq!(before.scaler.growth_tracker(), 1);
    Trial {
        scaler: before.scaler,
        optim: SgdConfig::new().init(),
        model,
    }
}

/// A status of no value.
fn check_values(status: &GradientStatus, gradients: usize) {
    assert_eq!((status.gradients(), status.elements()), (gradients, 0));
    assert_eq!((status.norm(), status.max_abs()), (0.0, 0.0));
    assert_eq!(status.zero_share(), 0.0);
    assert!(!status.has_overflow() && !status.is_all_zero());
    assert_eq!(status.overflow_parameter(), None);
}

fn check_nothing(status: &GradientStatus) {
    assert_eq!(*status, GradientStatus::default());
    check_values(status, 0);
}

/// The step is counted, and the scale learns nothing: no gradients are no evidence that it is fine.
fn check_empty_step<M: Module>(module: M, grads: GradientsParams) -> M {
    let mut run = used(module);
    let schedule = run.scaler.schedule();
    let grads = run.unscaled(grads);
    check_nothing(grads.status());
    run.take(grads).unwrap();
    assert_eq!(run.outcome(), Some(StepOutcome::NoGradients));
    let counters = run.scaler.counters();
    assert_eq!((counters.steps(), counters.stepped()), (3, 2));
    assert_eq!(run.scaler.update().unwrap(), None);
    assert_eq!(run.scaler.schedule(), schedule);
    run.model
}

#[test]
fn no_gradients() {
    let model = check_empty_step(Model::new(), GradientsParams::new());
    assert_eq!(model.values(), [1.0; Model::VALUES]);
    check_nothing(&inspect(&GradientsParams::new(), &model).unwrap());
    // Nor are there any without parameters.
    check_empty_step(Relu::new(), GradientsParams::new());
}

/// Steps without gradients may follow each other without `update`: nothing was stepped.
#[test]
fn no_gradients_twice() {
    let mut run = used(Model::new());
    for _ in 0..2 {
        run.take(run.unscaled(GradientsParams::new())).unwrap();
    }
    assert_eq!(run.scaler.counters().stepped(), 3);
}

/// A run of overflows is not broken by a step without gradients.
#[test]
fn no_gradients_do_not_end_a_run_of_skips() {
    let mut run = Trial::at(1024.0);
    run.iterate(true);
    run.iterate_with(GradientsParams::new());
    assert_eq!(run.scaler.counters().consecutive_skips(), 1);
}

/// An infinity in the gradient of a parameter of another module is no overflow here.
#[test]
fn gradients_of_strangers_are_dropped() {
    let stranger = || Model::new().overflowing(1.0).into_params();
    check_empty_step(Relu::new(), stranger());
    let model = check_empty_step(Model::new(), stranger());
    assert_eq!(model.values(), [1.0; Model::VALUES]);
}

#[test]
fn frozen_parameters_stay() {
    let mut model = Model::new();
    model.matrix = model.matrix.set_require_grad(false);
    let mut run = Trial::of(model, at_scale(64.0)).with_momentum();
    for _ in 0..2 {
        let (vector, matrix) = (run.model.vector.val(), run.model.matrix.val());
        let loss = (vector.sum() + matrix.sum() + run.model.kernel.val().sum()) * 2.0;
        let grads = run.scaler.backward(loss, &run.model);
        let grads = run.scaler.unscale(grads, &run.model).unwrap();
        assert_eq!(grads.status().gradients(), 2);
        let paths: Vec<&str> = grads.parameters().map(|(path, _)| path).collect();
        assert_eq!(paths, ["vector", "kernel"]);
        run.take(grads).unwrap();
        assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Stepped));
    }
    let values = run.model.values();
    assert_eq!(values[5..17], [1.0; 12]);
    assert!(values[..5].iter().chain(&values[17..]).all(|v| *v < 1.0));
    assert_eq!(run.optim.to_record().len(), 2);
    assert!(!run.model.matrix.is_require_grad());
    assert!(run.model.vector.is_require_grad());
}

#[test]
fn a_module_that_is_frozen_whole() {
    let (mut frozen, mut trained) = (Trial::at(64.0), Trial::at(64.0));
    frozen.model = frozen.model.no_grad();
    // Both are factors of one loss.
    let factors = [&frozen, &trained].map(|run| run.model.vector.clone());
    let loss = || (factors[0].val() * factors[1].val()).sum();
    for (run, gradients, value) in [(&mut frozen, 0, 1.0), (&mut trained, 1, 0.5)] {
        let grads = run.scaler.backward(loss(), &run.model);
        assert_eq!(grads.params().len(), gradients);
        let grads = run.scaler.unscale(grads, &run.model).unwrap();
        if gradients == 0 {
            check_nothing(grads.status());
        }
        run.take(grads).unwrap();
        let learned = (gradients == 1).then_some(StepOutcome::Stepped);
        assert_eq!(run.scaler.update().unwrap(), learned);
        assert_eq!(run.model.values()[..5], [value; 5]);
        assert_eq!(run.model.values()[5..], [1.0; 48]);
    }
}

/// Which parameters have a gradient may change from step to step.
#[test]
fn gradients_may_come_and_go() {
    let mut run = Trial::at(8.0);
    let (vector, matrix) = (run.model.vector.id, run.model.matrix.id);
    for step in 0..4 {
        let mut grads = GradientsParams::new();
        match step % 2 {
            0 => gradient(&mut grads, vector, Model::VECTOR, DType::F32, |_| 4.0),
            _ => gradient(&mut grads, matrix, Model::MATRIX, DType::F32, |_| 4.0),
        }
        assert_eq!(run.iterate_with(grads), Some(StepOutcome::Stepped));
    }
    let values = run.model.values();
    assert_eq!(values[..17], [0.5; 17]);
    assert_eq!(values[17..], [1.0; 36]);
}

#[derive(Module, Debug)]
struct WithEmpty {
    empty: Param<Tensor<2>>,
    model: Model,
}

/// One of whose tensors has no values, and gradients: of that tensor, and of this value for the others, if any.
fn with_empty(value: Option<f64>) -> (Trial<WithEmpty>, UnscaledGradients) {
    let module = WithEmpty {
        empty: Param::from_tensor(Tensor::zeros([0, 3], &Device::flex().autodiff())),
        model: Model::new(),
    };
    let others = value.map(|value| module.model.gradients(|_| value));
    let mut grads = others.unwrap_or_default();
    gradient(&mut grads, module.empty.id, [0, 3], DType::F32, |_| 0.0);
    let run = Trial::of(module, at_scale(8.0));
    let grads = run.unscaled(grads);
    (run, grads)
}

#[test]
fn tensors_without_values_among_others() {
    let (mut run, grads) = with_empty(Some(4.0));
    let status = grads.status();
    assert_eq!(status.gradients(), 4);
    assert_eq!(status.elements(), Model::VALUES as u64);
    assert_norm(status.norm(), 0.5 * (Model::VALUES as f64).sqrt());

    run.take(grads).unwrap();
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Stepped));
    assert_eq!(run.model.model.values(), [0.75; Model::VALUES]);
    assert_eq!(run.model.empty.val().dims(), [0, 3]);
}

#[test]
fn nothing_but_tensors_without_values() {
    let (mut run, grads) = with_empty(None);
    check_values(grads.status(), 1);
    run.take(grads).unwrap();
    assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
}

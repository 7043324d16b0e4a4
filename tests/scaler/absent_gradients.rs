//! Gradients that are not there: none at all, no parameters, frozen or unreached parameters, strangers, tensors without values.

use burn::nn::Relu;

use super::{status::assert_norm, support::*};

/// Trains this module, with a scaler after an overflow and a finite step.
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

/// They may follow each other without `update`: nothing was stepped. Nor do they break a row of overflows.
#[test]
fn no_gradients_twice_after_an_overflow() {
    let mut run = Trial::at(1024.0);
    run.iterate(true);
    for _ in 0..2 {
        run.take(run.unscaled(GradientsParams::new())).unwrap();
    }
    run.scaler.update().unwrap();
    let counters = run.scaler.counters();
    assert_eq!((counters.stepped(), counters.consecutive_skips()), (2, 1));
}

/// An infinity in the gradient of a parameter of another module is no overflow here.
#[test]
fn gradients_of_strangers_are_dropped() {
    let stranger = || Model::new().overflowing(1.0).into_params();
    check_empty_step(Relu::new(), stranger());
    let model = check_empty_step(Model::new(), stranger());
    assert_eq!(model.values(), [1.0; Model::VALUES]);
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

/// A tensor has no values, among others or alone.
#[test]
fn tensors_without_values() {
    let module = || WithEmpty {
        empty: Param::from_tensor(Tensor::zeros([0, 3], &Device::flex().autodiff())),
        model: Model::new(),
    };
    for has_others in [true, false] {
        let mut run = Trial::of(module(), at_scale(8.0));
        let mut grads = match has_others {
            true => run.model.model.gradients(|_| 4.0),
            false => GradientsParams::new(),
        };
        gradient(&mut grads, run.model.empty.id, [0, 3], DType::F32, |_| 0.0);
        let grads = run.unscaled(grads);
        if has_others {
            let status = grads.status();
            assert_eq!(
                (status.gradients(), status.elements()),
                (4, Model::VALUES as u64)
            );
            assert_norm(status.norm(), 0.5 * (Model::VALUES as f64).sqrt());
        } else {
            check_values(grads.status(), 1);
        }
        run.take(grads).unwrap();
        assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
        let moved = if has_others { 0.75 } else { 1.0 };
        assert_eq!(run.model.model.values(), [moved; Model::VALUES]);
        assert_eq!(run.model.empty.val().dims(), [0, 3]);
    }
}

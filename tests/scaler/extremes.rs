//! Gradients at the ends of their range, and tensors without values.

use burn_amp_tests::prelude::*;

use crate::support::{Model, Trial, gradient, scaler, unscaled};

fn assert_norm(status: &GradientStatus, expected: f64) {
    let norm = status.norm();
    let error = (norm - expected).abs();
    assert!(
        error <= 1e-6 * expected,
        "norm {norm}, reference {expected}"
    );
}

/// The largest and the smallest in one module, in one tensor and in several.
#[test]
fn magnitudes_may_differ_as_much_as_f32_allows() {
    let model = Model::new();
    let across = |index| if index < 5 { 1e30 } else { 1e-30 };
    let status = inspect(&model.gradients(across), &model).unwrap();
    assert_norm(&status, f64::from(1e30f32) * 5f64.sqrt());
    assert_eq!(status.zeros(), 0);

    let within = |index| if index % 2 == 0 { 1e-30 } else { 1e30 };
    let status = inspect(&model.gradients(within), &model).unwrap();
    let odd = (Model::VALUES / 2) as f64;
    assert_norm(&status, f64::from(1e30f32) * odd.sqrt());
    assert_eq!(status.zeros(), 0);
}

#[test]
fn f64_gradients_keep_their_range() {
    let model = Model::of(DType::F64);
    for magnitude in [1e200, 1e-200] {
        let grads = model.gradients(|_| magnitude * 65536.0);
        let grads = unscaled(&scaler(65536.0), grads, &model);
        assert!(!grads.has_overflow());
        assert_eq!(grads.status().max_abs(), magnitude);
        assert_eq!(grads.status().zeros(), 0);
        assert_norm(grads.status(), magnitude * (Model::VALUES as f64).sqrt());
    }
}

#[derive(Module, Debug)]
struct WithEmpty {
    empty: Param<Tensor<2>>,
    model: Model,
}

/// One of whose tensors has no values, and a gradient of the same kind.
fn with_empty() -> (Trial<WithEmpty>, GradientsParams) {
    let module = WithEmpty {
        empty: Param::from_tensor(Tensor::zeros([0, 3], &Device::flex().autodiff())),
        model: Model::new(),
    };
    let mut grads = GradientsParams::new();
    gradient(&mut grads, module.empty.id, [0, 3], DType::F32, |_| 0.0);
    let config = at_scale(8.0);
    (Trial::of(module, config), grads)
}

#[test]
fn tensors_without_values_among_others() {
    let (mut run, mut grads) = with_empty();
    let Model {
        vector,
        matrix,
        kernel,
    } = &run.model.model;
    gradient(&mut grads, vector.id, Model::VECTOR, DType::F32, |_| 4.0);
    gradient(&mut grads, matrix.id, Model::MATRIX, DType::F32, |_| 4.0);
    gradient(&mut grads, kernel.id, Model::KERNEL, DType::F32, |_| 4.0);
    let grads = run.unscaled(grads);
    let status = grads.status();
    assert_eq!(status.gradients(), 4);
    assert_eq!(status.elements(), Model::VALUES as u64);
    assert_norm(status, 0.5 * (Model::VALUES as f64).sqrt());

    run.take(grads).unwrap();
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Stepped));
    assert_eq!(run.model.model.values(), [0.75; Model::VALUES]);
    assert_eq!(run.model.empty.val().dims(), [0, 3]);
}

#[test]
fn nothing_but_tensors_without_values() {
    let (mut run, grads) = with_empty();
    let grads = run.unscaled(grads);
    let status = grads.status();
    assert_eq!((status.gradients(), status.elements()), (1, 0));
    assert_eq!((status.norm(), status.max_abs()), (0.0, 0.0));
    assert_eq!(status.zero_share(), 0.0);
    assert!(!status.is_all_zero() && !status.has_overflow());
    run.take(grads).unwrap();
    assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
}

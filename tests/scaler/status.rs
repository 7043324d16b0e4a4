//! `GradientStatus` against a reference in f64 on the host.

use std::array;

use super::support::*;

/// The index of the first value of each parameter of [`Model`], and the parameter's path.
const PARAMETERS: [(usize, &str); 3] = [(0, "vector"), (5, "matrix"), (17, "kernel")];

/// Values of both signs over three decades, some of them zero; exact in f32.
fn value(index: usize) -> f64 {
    if index % 7 == 3 {
        return 0.0;
    }
    let value = (index as f32 * 12.9898).sin() * 10f32.powi(index as i32 % 4 - 2);
    f64::from(value)
}

fn values() -> [f64; Model::VALUES] {
    array::from_fn(value)
}

pub fn assert_norm(actual: f64, expected: f64) {
    let error = (actual - expected).abs();
    assert!(error <= 1e-6 * expected, "{actual}, reference {expected}");
}

/// Compares with what a loop over the unscaled values finds.
fn check(status: &GradientStatus, values: &[f64]) {
    let finite = || values.iter().filter(|value| value.is_finite());
    let non_finite = values.len() - finite().count();
    assert_eq!(status.elements(), values.len() as u64);
    assert_eq!(status.non_finite(), non_finite as u64);
    assert_eq!(status.has_overflow(), non_finite > 0);
    let zeros = values.iter().filter(|value| **value == 0.0).count();
    assert_eq!(status.zeros(), zeros as u64);
    assert_eq!(status.zero_share(), zeros as f64 / values.len() as f64);
    assert_eq!(status.is_all_zero(), zeros == values.len());
    let max_abs = finite().fold(0f64, |max, value| max.max(value.abs()));
    assert_eq!(status.max_abs(), max_abs);
    // Of shares of the largest: the square of an f64 may be infinite.
    let shares = finite().map(|value| value / max_abs.max(f64::MIN_POSITIVE));
    let norm = max_abs * shares.map(|share| share * share).sum::<f64>().sqrt();
    assert_norm(status.norm(), norm);
    let first = values.iter().position(|value| !value.is_finite());
    let path = first.map(|first| {
        let parameter = PARAMETERS.iter().rev().find(|(start, _)| *start <= first);
        parameter.unwrap().1
    });
    assert_eq!(status.overflow_parameter(), path);
}

/// Unscales gradients whose unscaled values are given, and checks their status.
fn check_unscaled(dtype: DType, values: &[f64; Model::VALUES]) {
    let model = Model::of(dtype);
    let grads = model.gradients(|index| values[index] * 65536.0);
    let grads = unscaled(&scaler(65536.0), grads, &model);
    assert_eq!(grads.status().gradients(), 3);
    check(grads.status(), values);
    // `inspect` finds the same in what came out.
    assert_eq!(&inspect(grads.params(), &model).unwrap(), grads.status());
    let paths = grads.parameters().map(|(path, _)| path);
    assert!(paths.eq(PARAMETERS.map(|(_, path)| path)));
}

/// One bad value anywhere, some, or none; zeros of either sign; magnitudes that differ as much as the dtype allows.
#[test]
fn it_is_what_the_host_counts() {
    let bad = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let mut cases = vec![values(), [0.0; Model::VALUES], [-0.0; Model::VALUES]];
    cases.push(array::from_fn(|index| f64::from(index == 52)));
    for (at, value) in (0..Model::VALUES).flat_map(|at| bad.map(|value| (at, value))) {
        cases.push(values());
        cases.last_mut().unwrap()[at] = value;
    }
    for (stride, from) in [(2, 0), (3, 1), (5, 4), (1, 30), (1, 0)] {
        let is_bad = |index: usize| index >= from && index.is_multiple_of(stride);
        let value = |index| {
            if is_bad(index) {
                bad[index % 3]
            } else {
                value(index)
            }
        };
        cases.push(array::from_fn(value));
    }
    // In one tensor and in several.
    let of = |is_large| f64::from(if is_large { 1e30f32 } else { 1e-30 });
    cases.push(array::from_fn(|index| of(index < 5)));
    cases.push(array::from_fn(|index| of(index % 2 == 1)));
    for values in &cases {
        check_unscaled(DType::F32, values);
    }
    for magnitude in [1e200, 1e-200] {
        check_unscaled(DType::F64, &[magnitude; Model::VALUES]);
    }
}

#[test]
fn the_first_parameter_in_the_modules_order() {
    #[derive(Module, Debug)]
    struct Nested {
        // Ids grow as parameters are made: neither they nor names nor registration give this order.
        last_made: Model,
        first_made: Model,
    }

    let first_made = Model::new();
    let module = Nested {
        last_made: Model::new(),
        first_made,
    };
    let mut grads = GradientsParams::new();
    for model in [&module.first_made, &module.last_made] {
        let value = |index| if index == 11 { f64::NAN } else { 1.0 };
        gradient(&mut grads, model.matrix.id, [3, 4], DType::F32, value);
    }
    let status = inspect(&grads, &module).unwrap();
    assert_eq!(status.overflow_parameter(), Some("last_made.matrix"));
    assert_eq!(status.non_finite(), 2);
}

#[test]
fn inspect_leaves_gradients_as_they_are() {
    let (model, values) = (Model::new(), values());
    let grads = model.gradients(value);
    let status = inspect(&grads, &model).unwrap();
    check(&status, &values);
    assert_eq!(grads.len(), 3);
    assert_eq!(values_of::<1>(&grads, model.vector.id), values[..5]);
    assert_eq!(values_of::<2>(&grads, model.matrix.id), values[5..17]);
    assert_eq!(values_of::<4>(&grads, model.kernel.id), values[17..]);

    // Scaled gradients can be looked at as well: all grows with the scale.
    let scaled = model.gradients(|index| 1024.0 * value(index));
    let scaled = inspect(&scaled, &model).unwrap();
    assert_eq!(scaled.max_abs(), 1024.0 * status.max_abs());
    assert_norm(scaled.norm(), 1024.0 * status.norm());
}

#[test]
fn inspect_widens_half_precision() {
    for dtype in [DType::F16, DType::BF16] {
        let model = Model::of(dtype);
        // The square of 1024 is infinite in f16.
        let status = inspect(&model.gradients(|_| 1024.0), &model).unwrap();
        check(&status, &[1024.0; Model::VALUES]);
    }
}

/// A parameter that two modules share has one gradient, which counts once.
#[test]
fn a_shared_parameter_counts_once() {
    #[derive(Module, Debug)]
    struct Tied {
        encoder: Param<Tensor<2>>,
        decoder: Param<Tensor<2>>,
    }

    let shared = Tensor::<2>::ones([2, 2], &Device::flex().autodiff());
    let shared = Param::from_tensor(shared);
    let module = Tied {
        encoder: shared.clone(),
        decoder: shared,
    };
    let mut grads = GradientsParams::new();
    gradient(&mut grads, module.encoder.id, [2, 2], DType::F32, |_| 1.0);

    let inspected = inspect(&grads, &module).unwrap();
    let unscaled = unscaled(&scaler(1.0), grads, &module);
    assert_eq!(unscaled.status().gradients(), 1);
    assert_norm(unscaled.status().norm(), 2.0);
    assert_eq!(&inspected, unscaled.status());
}

//! `GradientStatus` against a reference in f64 on the host. What is found in one tensor, of every dtype, is in the kernels' tests.

use burn_amp_tests::{prelude::*, trial::*};

/// Values of both signs over three decades, some of them zero; exact in f32.
fn value(index: usize) -> f64 {
    match index % 7 {
        3 => 0.0,
        _ => f64::from((index as f32 * 12.9898).sin() * 10f32.powi(index as i32 % 4 - 2)),
    }
}

/// Compares the status of gradients whose unscaled values are given with what a loop over these finds.
fn check(dtype: DType, values: &[f64; 10]) {
    let run = ByHand::of(Pair::new([0.0; 10], &flex(), dtype), at_scale(65536.0));
    let grads = run.unscaled(*values);
    let status = grads.status();
    let finite = || values.iter().filter(|value| value.is_finite());
    let first = values.iter().position(|value| !value.is_finite());
    let zeros = values.iter().filter(|value| **value == 0.0).count() as u64;
    let counts = [status.elements(), status.non_finite(), status.zeros()];
    assert_eq!(counts, [10, 10 - finite().count() as u64, zeros]);
    assert_eq!(status.gradients(), 2);
    assert_eq!(status.has_overflow(), first.is_some());
    assert_eq!(status.zero_share(), zeros as f64 / 10.0);
    assert_eq!(status.is_all_zero(), zeros == 10);
    let max_abs = finite().fold(0f64, |max, value| max.max(value.abs()));
    assert_eq!(status.max_abs(), max_abs);
    // Of shares of the largest: the square of an f64 may be infinite.
    let shares = finite().map(|value| value / max_abs.max(f64::MIN_POSITIVE));
    let norm = max_abs * shares.map(|share| share * share).sum::<f64>().sqrt();
    let (found, off) = (status.norm(), (status.norm() - norm).abs());
    assert!(off <= 1e-6 * norm, "{found}, reference {norm}");
    let path = first.map(|first| if first < 6 { "weight" } else { "bias" });
    assert_eq!(status.overflow_parameter(), path);
    // `inspect` finds the same in what came out.
    let inspected = inspect(grads.params(), &run.model).unwrap();
    assert_eq!(inspected, *status);
    let paths = grads.parameters().map(|(path, _)| path);
    assert!(paths.eq(["weight", "bias"]));
}

/// One bad value anywhere, some, or none: the first is that in the module's order, whatever the order of ids, names and registration is. Zeros
/// of either sign; magnitudes that differ as much as the dtype allows, in one tensor and in several.
#[test]
fn it_is_what_the_host_counts() {
    let bad = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let of = |is_large| f64::from(if is_large { 1e30f32 } else { 1e-30 });
    let mut cases = vec![
        from_fn(value),
        [0.0; 10],
        [-0.0; 10],
        from_fn(|index| f64::from(index == 9)),
        from_fn(|index| of(index < 6)),
        from_fn(|index| of(index % 2 == 1)),
    ];
    // Whether each value is bad: one, every second or third, all of the bias, all.
    let one = (0..10).map(|at| 1 << at);
    let masks = one.chain([0x155, 0x049, 0x3c0, 0x3ff]);
    for (mask, kind) in masks.flat_map(|mask: u32| [0, 1, 2].map(|kind| (mask, kind))) {
        cases.push(from_fn(|index| match mask >> index & 1 {
            1 => bad[(index + kind) % 3],
            _ => value(index),
        }));
    }
    cases.iter().for_each(|case| check(DType::F32, case));
    check(DType::F64, &[1e200; 10]);
    check(DType::F64, &[1e-200; 10]);
}

/// A parameter that two modules share has one gradient, which counts once. Without any gradient nothing is found.
#[test]
fn a_shared_parameter_counts_once() {
    let shared = Pair::new([0.0; 10], &flex(), DType::F32);
    let run = ByHand::of([shared.clone(), shared], at_scale(1.0));
    let grads = run.model[0].plain(norm(2.0));
    let inspected = inspect(&grads, &run.model).unwrap();
    let unscaled = run.unscale(grads);
    assert_eq!(unscaled.status().gradients(), 2);
    assert_eq!(unscaled.status().norm(), 2.0);
    assert_eq!(&inspected, unscaled.status());
    let none = inspect(&GradientsParams::new(), &run.model).unwrap();
    assert_eq!(none, GradientStatus::default());
    assert!(!none.is_all_zero());
    assert_eq!((none.norm(), none.zero_share()), (0.0, 0.0));
}

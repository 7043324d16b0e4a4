//! What a watch is told.

use std::sync::{Arc, Mutex};

use burn::tensor::{FloatDType, Tensor};
use burn_amp_kernels::{
    Crossing, CrossingStatus, Factor, Reading, Status, Watch, scaled_cast, watched_cast,
};

use crate::host::{
    assert_products, dtypes, has_kernels, narrowest, on_device, pairs, tensor, values,
};

/// A watch, and what it has been told.
fn watch() -> (Watch, Arc<Mutex<Vec<Crossing>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let there = told.clone();
    (
        Watch::new(move |crossing| there.lock().unwrap().push(crossing)),
        told,
    )
}

/// What crosses where `gradients` meet `inputs`; the gradient must be as it is unwatched.
fn cross(
    inputs: &[f32],
    gradients: &[f32],
    (from, to): (FloatDType, FloatDType),
    factor: f64,
) -> Option<CrossingStatus> {
    let (watch, told) = watch();
    let count = inputs.len();
    let input = tensor::<1>(inputs, [count], from).require_grad();
    let output = watched_cast(input.clone(), to, factor, &watch);
    let grads = (output * tensor(gradients, [count], to)).sum().backward();
    let found = values(input.grad(&grads).unwrap());
    if inputs.iter().all(|value| value.is_finite()) {
        assert_products(gradients, &found, (from, to), factor);
    }
    let mut told = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(told.len(), usize::from(has_kernels()));
    let found = told.pop()?.read().expect("a device that can be read");
    let finite = gradients.iter().map(|value| f64::from(*value));
    let squares = finite
        .filter(|value| value.is_finite())
        .map(|value| value * value);
    let norm = squares.sum::<f64>().sqrt() * factor.abs();
    assert!(
        (found.norm - norm).abs() <= 1e-5 * norm,
        "{found:?}, and not {norm}"
    );
    assert_eq!(found.elements, count as u64);
    Some(CrossingStatus {
        norm: 0.0,
        elements: 0,
        ..found
    })
}

#[test]
fn a_watch_alone_changes_nothing_and_measures_both() {
    let (watch, told) = watch();
    let dtype = narrowest();
    let input = tensor::<1>(&[1.0, 0.0, f32::INFINITY, -8.0], [4], dtype).require_grad();
    let output = watched_cast(input.clone(), dtype, 1.0, &watch);
    assert_eq!(output.dtype(), dtype.into());
    let gradients = [0.0, 0.0, f32::NAN, 3.0];
    let grads = (output * tensor(&gradients, [4], dtype)).sum().backward();
    let found = values(input.grad(&grads).unwrap());
    assert_eq!((found[0], found[1], found[3]), (0.0, 0.0, 3.0));
    assert!(found[2].is_nan());

    let told = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(told.len(), usize::from(has_kernels()));
    for crossing in told {
        let (gradient, value) = crossing.read_measures().expect("a device that can be read");
        assert_eq!(
            (
                gradient.elements,
                gradient.zeros,
                gradient.non_finite,
                gradient.max_abs
            ),
            (4, 2, 1, 3.0)
        );
        let value = value.expect("the tensor was looked at");
        assert_eq!(
            (value.elements, value.zeros, value.non_finite, value.max_abs),
            (4, 1, 1, 8.0)
        );
    }
}

#[test]
fn what_was_found() {
    for pair in pairs() {
        let inputs = [1.0, -2.0, 0.5, 0.0];
        let status =
            |inputs: &[f32], gradients: &[f32], factor| cross(inputs, gradients, pair, factor);
        let fine = CrossingStatus {
            output_finite: true,
            gradient_finite: true,
            overflow: false,
            max_abs: 6.0,
            norm: 0.0,
            elements: 0,
        };
        let Some(found) = status(&inputs, &[1.0, -3.0, 0.0, 2.0], 2.0) else {
            assert!(!has_kernels());
            continue;
        };
        assert_eq!(found, fine);
        // Nothing but the measure is left of it.
        assert_eq!(status(&inputs, &[1.0, -6.0, 0.0, 2.0], 1.0), Some(fine));
        assert_eq!(status(&inputs, &[1.0, -3.0, 0.0, 2.0], -2.0), Some(fine));
        assert_eq!(
            status(&inputs, &[0.0; 4], 65536.0),
            Some(CrossingStatus {
                max_abs: 0.0,
                ..fine
            })
        );
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let found = status(&inputs, &[1.0, bad, 3.0, 0.0], 2.0);
            assert_eq!(
                found,
                Some(CrossingStatus {
                    gradient_finite: false,
                    ..fine
                })
            );
            let found = status(&[1.0, 2.0, bad, 0.0], &[1.0, 2.0, 3.0, 0.0], 2.0);
            assert_eq!(
                found,
                Some(CrossingStatus {
                    output_finite: false,
                    ..fine
                })
            );
        }
    }
}

/// The host learns the factor later, and then knows what it would have known.
#[test]
fn a_factor_on_the_device() {
    for (from, to) in pairs() {
        for (ratio, scale) in [(0.5, 4.0), (2.0, 2f64.powi(20)), (1.0, 1.0)] {
            let gradients = [1.0, -3.0, 0.0, 2.0];
            let (watch, told) = watch();
            let pass = |factor: Factor| {
                let input = tensor::<1>(&[1.0, -2.0, 0.5, 0.0], [4], from).require_grad();
                let output = watched_cast(input.clone(), to, factor, &watch);
                let grads = (output * tensor(&gradients, [4], to)).sum().backward();
                let found = values(input.grad(&grads).unwrap());
                assert_products(&gradients, &found, (from, to), ratio * scale);
                told.lock().unwrap().pop()
            };
            let known = pass((ratio * scale).into());
            let later = pass(on_device(ratio * scale, ratio));
            assert_eq!(later.is_some(), has_kernels());
            let known = known.map(|crossing| crossing.read());
            assert_eq!(
                later.map(|crossing| Reading::now(Status::default(), vec![crossing])
                    .wait(scale)
                    .1[0]),
                known
            );
            let ratio_alone = pass(on_device(ratio * scale, ratio));
            let found = ratio_alone.and_then(|crossing| crossing.read());
            assert!(found.is_none_or(|found| found.max_abs == 3.0 * ratio));
        }
    }
}

/// What is not asked for is not kept until the backward pass.
#[test]
fn the_gradient_alone() {
    for (from, to) in pairs() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let there = told.clone();
        let watch = Watch::of_gradient(move |crossing| there.lock().unwrap().push(crossing));
        let input = tensor::<1>(&[1.0, f32::INFINITY, 2.0], [3], from).require_grad();
        let output = watched_cast(input, to, 2.0, &watch);
        (output * tensor(&[3.0, 0.0, 4.0], [3], to))
            .sum()
            .backward();
        for crossing in std::mem::take(&mut *told.lock().unwrap()) {
            let found: CrossingStatus = crossing.read().expect("a device that can be read");
            assert!(found.output_finite && found.gradient_finite && !found.overflow);
            assert_eq!((found.max_abs, found.norm, found.elements), (8.0, 10.0, 3));
        }
    }
}

/// Overflow is said to be where the gradient is infinite and was not.
#[test]
fn overflow_is_that_of_the_inputs_dtype() {
    for (from, to) in pairs() {
        let power = |exponent: i32| 2f32.powi(exponent);
        let (below, above): (&[f32], &[f32]) = match from {
            FloatDType::F16 => (&[65504.0, 65519.0], &[65520.0, 65536.0]),
            FloatDType::BF16 => (
                &[255.0 / 128.0 * power(127), 1.996 * power(127)],
                &[511.0 / 256.0 * power(127), f32::MAX],
            ),
            _ => (&[f32::MAX], &[]),
        };
        for (gradients, overflow) in [(below, false), (above, true)] {
            for gradient in gradients {
                let rounded = crate::host::round(*gradient, to);
                if rounded != *gradient {
                    continue;
                }
                // Powers of two, which change no bit.
                for exponent in [-16, -1, 0] {
                    let factor = 2f64.powi(-exponent);
                    let gradient = gradient * power(exponent);
                    if crate::host::round(gradient, to) != gradient {
                        continue;
                    }
                    let found = cross(&[1.0, 1.0], &[gradient, 1.0 / 65536.0], (from, to), factor);
                    let found = found.map(|found| (found.overflow, found.gradient_finite));
                    assert_eq!(
                        found,
                        has_kernels().then_some((overflow, true)),
                        "{gradient:e}"
                    );
                }
            }
        }
        // Beyond f32 itself.
        let huge = crate::host::round(1.5 * power(15), to);
        let found = cross(&[1.0], &[huge], (from, to), 2f64.powi(120));
        assert_eq!(
            found.map(|found| found.overflow),
            has_kernels().then_some(true)
        );
    }
}

/// A product that is rounded up to the edge in f32, and to infinity from there.
#[test]
fn overflow_by_two_roundings() {
    let f16 = FloatDType::F16;
    if !dtypes().contains(&f16) {
        return;
    }
    let factor = 65519.999f64 / 4096.0;
    let found = cross(&[1.0], &[4096.0], (f16, FloatDType::F32), factor);
    assert_eq!(
        found.map(|found| found.overflow),
        has_kernels().then_some(true)
    );
}

#[test]
fn told_once_for_each_backward_pass() {
    for (from, to) in pairs() {
        let (watch, told) = watch();
        let count = || told.lock().unwrap().len();
        let leaf = tensor::<1>(&[1.0, 2.0], [2], from).require_grad();
        for passes in 1..=3 {
            let output = watched_cast(leaf.clone() * 1.5, to, 2.0, &watch);
            // Forward, twice read, and a graph that is left behind.
            let _ = values(output.clone());
            drop(watched_cast(leaf.clone(), to, 2.0, &watch));
            assert_eq!(count(), if has_kernels() { passes - 1 } else { 0 });
            let grads = (output.clone() + output).sum().backward();
            assert_eq!(values(leaf.grad(&grads).unwrap()), [6.0; 2]);
            assert_eq!(count(), if has_kernels() { passes } else { 0 });
        }
    }
}

#[test]
fn nothing_is_told_off_the_path() {
    let dtype = dtypes()[0];
    let (watch, told) = watch();
    let leaf = || tensor::<1>(&[1.0, 2.0], [2], dtype).require_grad();
    let (on, off) = (leaf(), leaf());
    let unused = watched_cast(off, FloatDType::F32, 2.0, &watch);
    let used = scaled_cast(on, FloatDType::F32, 2.0);
    let detached = watched_cast((leaf() * 2.0).detach(), FloatDType::F32, 2.0, &watch);
    let _grads = (used + unused.detach() + detached).sum().backward();
    assert!(told.lock().unwrap().is_empty());
}

/// Read in any order, and long after the pass: each has its own words.
#[test]
fn crossings_are_kept() {
    if !has_kernels() {
        return;
    }
    let dtype = dtypes()[0];
    let (watch, told) = watch();
    let mut state: Tensor<1> = tensor::<1>(&[1.0, 2.0], [2], FloatDType::F32).require_grad();
    for _ in 0..2 {
        state = watched_cast(state, dtype, 0.5, &watch);
        state = watched_cast(state, FloatDType::F32, 4.0, &watch);
    }
    let _grads = state.sum().backward();
    let told = std::mem::take(&mut *told.lock().unwrap());
    let largest = |crossing: Crossing| crossing.read().unwrap().max_abs;
    let mut found: Vec<f64> = told.into_iter().rev().map(largest).collect();
    found.reverse();
    assert_eq!(found, [4.0, 2.0, 8.0, 4.0]);
}

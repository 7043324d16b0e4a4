//! What a watch receives.

use std::sync::mpsc::{Receiver, channel};

use burn::tensor::{FloatDType, Tensor};
use burn_amp_kernels::{
    EventStatus, Factor, PassedGradient, Reading, ScaleState, Status, TensorList, UnreadEvent,
    Watch, inspect, scaled_cast, watched_cast,
};

use crate::device::has_kernels;
use crate::host::*;

/// A watch, and what it receives.
pub fn watch() -> (Watch, Receiver<UnreadEvent>) {
    let (sender, received) = channel();
    let watch = Watch::new(move |event| sender.send(event).unwrap());
    (watch, received)
}

/// The gradient of an input, where `gradients` come to its cast.
fn grad(both: [&[f32]; 2], (from, to): Pair, factor: impl Into<Factor>, watch: &Watch) -> Vec<f32> {
    let [inputs, gradients] = both;
    let count = [inputs.len()];
    let input = tensor::<1>(inputs, count, from).require_grad();
    let output = watched_cast(input.clone(), to, factor, watch);
    assert_eq!(output.dtype(), to.into());
    let grads = (output * tensor(gradients, count, to)).sum().backward();
    values(input.grad(&grads).unwrap())
}

/// Whether the output, the gradient and the product were finite, and the largest magnitude of the latter.
type Found = ([bool; 3], f64);

/// What is measured of `gradients` at the cast of `inputs`; the gradient must be as it is unwatched.
fn cross(inputs: &[f32], gradients: &[f32], pair: Pair, factor: f64) -> Option<Found> {
    let (watch, received) = watch();
    let found = grad([inputs, gradients], pair, factor, &watch);
    if inputs.iter().all(|value| value.is_finite()) {
        assert_products(gradients, &found, pair, factor);
    }
    let mut received: Vec<UnreadEvent> = received.try_iter().collect();
    assert_eq!(received.len(), usize::from(has_kernels()));
    let found = received.pop()?.read().expect("a device that can be read");
    let finite = gradients.iter().filter(|value| value.is_finite());
    let squares = finite.map(|value| f64::from(*value).powi(2));
    let norm = squares.sum::<f64>().sqrt() * factor.abs();
    let error = (found.norm - norm).abs();
    assert!(error <= 1e-5 * norm, "{found:?}, and not {norm}");
    assert_eq!(found.elements, inputs.len() as u64);
    let finite = [found.output_finite, found.gradient_finite, !found.overflow];
    Some((finite, found.max_abs))
}

#[test]
fn a_watch_alone_changes_nothing_and_measures_both() {
    let (watch, received) = watch();
    let dtypes = (narrowest(), narrowest());
    let inputs = [1.0, 0.0, f32::INFINITY, -8.0];
    let gradients = [0.0, 0.0, f32::NAN, 3.0];
    let found = grad([&inputs, &gradients], dtypes, 1.0, &watch);
    assert_same(&found, &gradients);

    let received: Vec<UnreadEvent> = received.try_iter().collect();
    assert_eq!(received.len(), usize::from(has_kernels()));
    for event in received {
        let (gradient, value) = event.read_measures().expect("a device that can be read");
        let value = value.expect("the tensor was looked at");
        let found = [gradient, value]
            .map(|found| (found.elements, found.zeros, found.non_finite, found.max_abs));
        assert_eq!(found, [(4, 2, 1, 3.0), (4, 1, 1, 8.0)]);
    }
}

#[test]
fn what_was_found() {
    let (inputs, fine) = ([1.0, -2.0, 0.5, 0.0], [true; 3]);
    // Nothing but the measure is left of the gradient.
    let mut cases = vec![
        (inputs, [1.0, -3.0, 0.0, 2.0], 2.0, (fine, 6.0)),
        (inputs, [1.0, -6.0, 0.0, 2.0], 1.0, (fine, 6.0)),
        (inputs, [1.0, -3.0, 0.0, 2.0], -2.0, (fine, 6.0)),
        (inputs, [0.0; 4], 65536.0, (fine, 0.0)),
    ];
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let [gradient, output] = [[true, false, true], [false, true, true]];
        cases.push((inputs, [1.0, bad, 3.0, 0.0], 2.0, (gradient, 6.0)));
        let inputs = [1.0, 2.0, bad, 0.0];
        cases.push((inputs, [1.0, 2.0, 3.0, 0.0], 2.0, (output, 6.0)));
    }
    for pair in pairs() {
        for (inputs, gradients, factor, expected) in &cases {
            let found = cross(inputs, gradients, pair, *factor);
            assert_eq!(found, has_kernels().then_some(*expected), "{gradients:?}");
        }
    }
}

/// The host reads the factor later, and then knows what it would have known.
#[test]
fn a_factor_on_the_device() {
    for pair in pairs() {
        for (ratio, scale) in [(0.5, 4.0), (2.0, 2f64.powi(20)), (1.0, 1.0)] {
            let (inputs, gradients) = ([1.0, -2.0, 0.5, 0.0], [1.0, -3.0, 0.0, 2.0]);
            let (watch, received) = watch();
            let pass = |factor: Factor| {
                let found = grad([&inputs, &gradients], pair, factor, &watch);
                assert_products(&gradients, &found, pair, ratio * scale);
                received.try_iter().last()
            };
            let known = pass((ratio * scale).into()).map(|event| event.read());
            let there = || on_device(ratio * scale, ratio);
            let later = pass(there());
            assert_eq!(later.is_some(), has_kernels());
            let reading = later.map(|event| Reading::now(Status::default(), vec![event]));
            assert_eq!(reading.map(|reading| reading.wait(scale).1[0]), known);
            let ratio_alone = pass(there()).and_then(|event| event.read());
            assert!(ratio_alone.is_none_or(|found| found.max_abs == 3.0 * ratio));
        }
    }
}

/// What is not asked for is not kept until the backward pass.
#[test]
fn the_gradient_alone() {
    for pair in pairs() {
        let (sender, received) = channel();
        let watch = Watch::of_gradient(move |event| sender.send(event).unwrap());
        let (inputs, gradients) = ([1.0, f32::INFINITY, 2.0], [3.0, 0.0, 4.0]);
        grad([&inputs, &gradients], pair, 2.0, &watch);
        for event in received.try_iter() {
            let found: EventStatus = event.read().expect("a device that can be read");
            assert!(found.output_finite && found.gradient_finite && !found.overflow);
            assert_eq!((found.max_abs, found.norm, found.elements), (8.0, 10.0, 3));
        }
    }
}

/// Overflow is said to be where the gradient is infinite and was not.
#[test]
fn overflow_is_that_of_the_inputs_dtype() {
    let power = |exponent: i32| 2f32.powi(exponent);
    let assert_fits = |gradient: f32, pair, factor, fits| {
        let found = cross(&[1.0; 2], &[gradient, 1.0 / 65536.0], pair, factor);
        let expected = has_kernels().then_some([true, true, fits]);
        assert_eq!(found.map(|found| found.0), expected, "{gradient:e}");
    };
    for (from, to) in pairs() {
        // Those that fit, the largest last, and those that do not.
        let [fitting, others] = match from {
            FloatDType::F16 => [vec![65504.0, 65519.0], vec![65520.0, 65536.0]],
            FloatDType::BF16 => [
                vec![255.0 / 128.0, 1.996],
                vec![511.0 / 256.0, 2f32.next_down()],
            ]
            .map(|all| all.into_iter().map(|value| value * power(127)).collect()),
            _ => [vec![f32::MAX], vec![]],
        };
        let fitting = fitting.into_iter().map(|whole| (whole, true));
        for (whole, fits) in fitting.chain(others.into_iter().map(|whole| (whole, false))) {
            // Powers of two, which change no bit.
            for exponent in [-16, -1, 0] {
                let (gradient, exact) =
                    (whole * power(exponent), |value| round(value, to) == value);
                if exact(whole) && exact(gradient) {
                    assert_fits(gradient, (from, to), 2f64.powi(-exponent), fits);
                }
            }
        }
        // Beyond f32 itself.
        let large = round(1.5 * power(15), to);
        assert_fits(large, (from, to), 2f64.powi(120), false);
    }
    let pair = (FloatDType::F16, FloatDType::F32);
    if pairs().contains(&pair) {
        // A product that is rounded up to the edge in f32, and to infinity from there.
        assert_fits(4096.0, pair, 65519.999 / 4096.0, false);
    }
}

#[test]
fn no_event_off_the_path() {
    let dtype = narrowest();
    let (watch, received) = watch();
    let leaf = || tensor::<1>(&[1.0, 2.0], [2], dtype).require_grad();
    let (on, off) = (leaf(), leaf());
    let unused = watched_cast(off, FloatDType::F32, 2.0, &watch);
    let used = scaled_cast(on, FloatDType::F32, 2.0);
    let detached = watched_cast((leaf() * 2.0).detach(), FloatDType::F32, 2.0, &watch);
    let _grads = (used + unused.detach() + detached).sum().backward();
    assert_eq!(received.try_iter().count(), 0);
}

/// Read in any order, and long after the pass: each has its own words.
#[test]
fn events_are_kept() {
    if !has_kernels() {
        return;
    }
    let dtype = narrowest();
    let (watch, received) = watch();
    let mut state: Tensor<1> = tensor::<1>(&[1.0, 2.0], [2], FloatDType::F32).require_grad();
    for _ in 0..2 {
        state = watched_cast(state, dtype, 0.5, &watch);
        state = watched_cast(state, FloatDType::F32, 4.0, &watch);
    }
    let _grads = state.sum().backward();
    let largest = |event: UnreadEvent| event.read().unwrap().max_abs;
    // The last is read first.
    let received: Vec<UnreadEvent> = received.try_iter().collect();
    let backwards: Vec<f64> = received.into_iter().rev().map(largest).collect();
    assert_eq!(backwards, [4.0, 8.0, 2.0, 4.0]);
}

/// The event of gradients that pass casts of one kind, measured once both are there, and their tensors' numbers.
fn passed(pair: Pair, gradients: [&[f32]; 2]) -> Option<(UnreadEvent, [u64; 2])> {
    let (sender, received) = channel();
    let watch = Watch::of_passing(move |gradient| sender.send(gradient).unwrap());
    for gradient in gradients {
        let found = grad([&[1.0; 2], gradient], pair, 2.0, &watch);
        assert_same(
            &found,
            &gradient.iter().map(|value| 2.0 * value).collect::<Vec<_>>(),
        );
    }
    let passed: Vec<PassedGradient> = received.try_iter().collect();
    let numbers = passed.iter().map(PassedGradient::node).collect::<Vec<_>>();
    let event = PassedGradient::measure(passed).unwrap()?;
    Some((event, numbers.try_into().unwrap()))
}

#[test]
fn gradients_that_pass_are_measured_together_and_later() {
    assert!(PassedGradient::measure(Vec::new()).unwrap().is_none());
    for pair in pairs() {
        for (second, finite) in [([0.0, 4.0], true), ([f32::NAN, 4.0], false)] {
            let found = passed(pair, [&[3.0, 0.0], &second]);
            assert_eq!(found.is_some(), has_kernels());
            if let Some((event, [first, second])) = found {
                let found = event.read().expect("a device that can be read");
                assert!(first < second && found.output_finite && !found.overflow);
                assert_eq!((found.gradient_finite, found.elements), (finite, 4));
                assert_eq!((found.max_abs, found.norm), (8.0, 10.0));
            }
        }
    }
}

/// The scale falls for what half precision has made alone: it came finite, and overflowed then, or left infinite.
#[test]
fn a_scale_on_the_device_falls_for_its_own_overflow() {
    if !has_kernels() {
        return;
    }
    let pair = (narrowest(), FloatDType::F32);
    let (bad, fine) = ([f32::INFINITY, 1.0], [3.0, 1.0]);
    let (watch, received) = watch();
    let at_border = |gradients: &[f32]| {
        grad([&[1.0; 2], gradients], pair, on_device(1024.0, 1.0), &watch);
        received.try_iter().last().unwrap()
    };
    let given = |gradients: &[f32]| passed(pair, [gradients, &fine]).unwrap().0;
    let largest = if pair.0 == FloatDType::F16 {
        64.0
    } else {
        2f32.powi(118)
    };
    let cases = [
        (&fine, Some(&bad), 512.0),
        (&fine, Some(&fine), 1024.0),
        (&fine, None, 512.0),
        (&[largest, 0.0], Some(&fine), 512.0),
        (&[largest / 2.0, 0.0], Some(&fine), 1024.0),
        (&bad, Some(&bad), 1024.0),
    ];
    for (came, left, expected) in cases {
        let event = at_border(came);
        let given: Vec<_> = left.map(|left| given(left)).into_iter().collect();
        for (gradients, expected) in [(&bad, expected), (&fine, 1024.0)] {
            let mut list = TensorList::new();
            list.push(tensor::<1>(gradients, [2], FloatDType::F32));
            let device = tensor::<1>(&[0.0], [1], FloatDType::F32).device().inner();
            let scale = ScaleState::new(1024.0).upload(&device);
            let next = scale.advance(&inspect(list).unwrap(), Some(&event), &given);
            assert_eq!(
                next.read().scale,
                expected,
                "{came:?} {left:?} {gradients:?}"
            );
        }
    }
}

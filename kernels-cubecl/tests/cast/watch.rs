//! What a watch receives beside what every cast is checked for.

use std::sync::mpsc::channel;

use burn::tensor::{DType, FloatDType, Tensor};
use burn_amp_kernels::{
    PassedGradient, Reading, ScaleState, Status, TensorList, UnreadEvent, Watch, inspect,
    scaled_cast, watched_cast,
};

use crate::check::{backward, watch};
use crate::device::{has_kernels, pairs};
use crate::{skipped::skipped, tensors::*};

/// The gradient of an input, where `gradients` come to its cast.
fn grad(both: [&[f64]; 2], (from, to): Pair, factor: f64, watch: &Watch) -> Vec<f64> {
    let shape = [both[0].len()];
    let [input, gradient] =
        [(both[0], from), (both[1], to)].map(|(numbers, dtype)| tensor::<1>(numbers, shape, dtype));
    values(backward(&input, &gradient, factor, watch))
}

/// Without a factor the gradient stays as it is; both it and the tensor are measured, or the gradient alone.
#[test]
fn what_is_measured() {
    let (inputs, gradients) = ([1.0, 0.0, f64::INFINITY, -8.0], [0.0, 0.0, f64::NAN, 3.0]);
    for pair in pairs() {
        let (sender, alone) = channel();
        let of_gradient = Watch::of_gradient(move |event| sender.send(event).unwrap());
        let (watch, both) = watch();
        for (watch, received, is_both) in [(watch, both, true), (of_gradient, alone, false)] {
            let found = grad([&inputs, &gradients], pair, 1.0, &watch);
            if has_kernels() {
                assert_same(&found, &gradients);
            }
            let received: Vec<UnreadEvent> = received.try_iter().collect();
            assert_eq!(received.len(), usize::from(has_kernels()));
            for event in received {
                let seen = event.clone().read().expect("a device that can be read");
                assert_eq!(seen.output_finite, !is_both);
                let (gradient, value) = event.read_measures().expect("the same");
                assert_eq!(value.is_some(), is_both);
                let found = [Some(gradient), value].into_iter().flatten();
                let found = found.map(|of| (of.elements, of.zeros, of.non_finite, of.max_abs));
                let expected = [(4, 2, 1, 3.0), (4, 1, 1, 8.0)];
                assert!(
                    found
                        .zip(expected)
                        .all(|(found, expected)| found == expected)
                );
            }
        }
    }
}

/// The host reads the factor later, and then knows what it would have known.
#[test]
fn a_factor_on_the_device() {
    for (from, to) in pairs() {
        for (ratio, scale) in [(0.5, 4.0), (2.0, 2f64.powi(20)), (1.0, 1.0)] {
            let input = tensor(&[1.0, -2.0, 0.5, 0.0], [4], from);
            let gradient = tensor(&[1.0, -3.0, 0.0, 2.0], [4], to);
            let (watch, received) = watch();
            let there = || on_device(ratio * scale, ratio);
            let events = [(ratio * scale).into(), there(), there()].map(|factor| {
                backward(&input, &gradient, factor, &watch);
                received.try_iter().last()
            });
            assert_eq!(events[1].is_some(), has_kernels());
            let [known, later, ratio_alone] = events;
            let known = known.map(|event| event.read());
            let reading = later.map(|event| Reading::now(Status::default(), vec![event]));
            assert_eq!(reading.map(|reading| reading.wait(scale).1[0]), known);
            let ratio_alone = ratio_alone.and_then(|event| event.read());
            assert!(ratio_alone.is_none_or(|found| found.max_abs == 3.0 * ratio));
        }
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
        return skipped("no watch without kernels");
    }
    let dtype = narrowest();
    let (watch, received) = watch();
    let mut state: Tensor<1> = tensor::<1>(&[1.0, 2.0], [2], DType::F32).require_grad();
    for _ in 0..2 {
        state = watched_cast(state, dtype.into(), 0.5, &watch);
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
fn passed(pair: Pair, gradients: [&[f64]; 2]) -> Option<(UnreadEvent, [u64; 2])> {
    let (sender, received) = channel();
    let watch = Watch::of_passing(move |gradient| sender.send(gradient).unwrap());
    for gradient in gradients {
        grad([&[1.0; 2], gradient], pair, 2.0, &watch);
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
        for (second, finite) in [([0.0, 4.0], true), ([f64::NAN, 4.0], false)] {
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
        return skipped("no watch without kernels");
    }
    let pair = (narrowest(), DType::F32);
    let (bad, fine) = ([f64::INFINITY, 1.0], [3.0, 1.0]);
    let (watch, received) = watch();
    let largest = match pair.0 {
        DType::F16 => 64.0,
        _ => 2f64.powi(118),
    };
    let given = |gradients: &[f64]| passed(pair, [gradients, &fine]).unwrap().0;
    for (came, left, expected) in [
        (fine, Some(bad), 512.0),
        (fine, Some(fine), 1024.0),
        (fine, None, 512.0),
        ([largest, 0.0], Some(fine), 512.0),
        ([largest / 2.0, 0.0], Some(fine), 1024.0),
        (bad, Some(bad), 1024.0),
    ] {
        let [input, gradient] = [([1.0; 2], pair.0), (came, pair.1)]
            .map(|(numbers, dtype)| tensor::<1>(&numbers, [2], dtype));
        backward(&input, &gradient, on_device(1024.0, 1.0), &watch);
        let event = received.try_iter().last().unwrap();
        let left: Vec<_> = left.map(|left| given(&left)).into_iter().collect();
        // A million values are counted in another field.
        let many = vec![f64::INFINITY; 1 << 20];
        for (gradients, expected) in [(&bad[..], expected), (&many, expected), (&fine, 1024.0)] {
            let mut list = TensorList::new();
            list.push(tensor::<1>(gradients, [gradients.len()], DType::F32));
            let device = gradient.device().inner();
            let scale = ScaleState::new(1024.0).upload(&device);
            let next = scale.advance(&inspect(list).unwrap(), Some(&event), &left);
            let found = next.read().scale;
            let length = gradients.len();
            assert_eq!(found, expected, "{came:?} {left:?} {length} gradients");
        }
    }
}

//! What a watch receives beside what every cast is checked for.

use std::sync::mpsc::channel;

use super::*;

/// The host reads the factor later, and then knows what it would have known.
#[test]
fn a_factor_on_the_device() {
    for pair in pairs() {
        for (ratio, scale) in [(0.5, 4.0), (2.0, 2f64.powi(20)), (1.0, 1.0)] {
            let numbers: [&[f64]; 2] = [&[1.0, -2.0, 0.5, 0.0], &[1.0, -3.0, 0.0, 2.0]];
            let [input, gradient] = both::<1>(pair, numbers, [4]);
            let (watch, received) = watch();
            let factors = [(ratio * scale).into(), on_device(ratio * scale, ratio)];
            let [known, later] = factors.map(|factor| {
                backward(&input, &gradient, factor, &watch);
                received.try_iter().last()
            });
            assert_eq!(later.is_some(), has_kernels());
            let ratio_alone = later.clone().and_then(|event| event.read());
            assert!(ratio_alone.is_none_or(|found| found.max_abs == 3.0 * ratio));
            let known = known.map(|event| event.read());
            let reading = later.map(|event| Reading::now(Status::default(), vec![event]));
            assert_eq!(reading.map(|reading| reading.wait(scale).1[0]), known);
        }
    }
}

/// Read in any order, and long after the pass: each has its own words. What is off the path has none.
#[test]
fn events_of_the_path_are_kept() {
    if !has_kernels() {
        return skipped("no watch without kernels");
    }
    let (watch, received) = watch();
    let leaf = |dtype| tensor::<1>(&[1.0, 2.0], [2], dtype).require_grad();
    let unused = watched_cast(leaf(narrowest()), FloatDType::F32, 2.0, &watch);
    let constant = (leaf(narrowest()) * 2.0).detach();
    let detached = watched_cast(constant, FloatDType::F32, 2.0, &watch);
    let mut state = leaf(DType::F32);
    for _ in 0..2 {
        state = watched_cast(state, narrowest().into(), 0.5, &watch);
        state = watched_cast(state, FloatDType::F32, 4.0, &watch);
    }
    let _grads = (state + unused.detach() + detached).sum().backward();
    // The last is read first.
    let received: Vec<UnreadEvent> = received.try_iter().collect();
    let backwards = received.into_iter().rev();
    let largest = backwards.map(|event| event.read().unwrap().max_abs);
    assert_eq!(largest.collect::<Vec<_>>(), [4.0, 8.0, 2.0, 4.0]);
}

/// The event of gradients that pass casts of one kind, measured once both are there, and their tensors' numbers.
fn passed(pair: Pair, gradients: [[f64; 2]; 2]) -> Option<(UnreadEvent, Vec<u64>)> {
    let (sender, received) = channel();
    let watch = Watch::of_passing(move |gradient| sender.send(gradient).unwrap());
    for gradient in gradients {
        let [input, gradient] = both::<1>(pair, [&[1.0; 2], &gradient], [2]);
        backward(&input, &gradient, 2.0, &watch);
    }
    let passed: Vec<PassedGradient> = received.try_iter().collect();
    let numbers = passed.iter().map(PassedGradient::node).collect();
    let event = PassedGradient::measure(passed).unwrap();
    event.map(|event| (event, numbers))
}

#[test]
fn gradients_that_pass_are_measured_together_and_later() {
    assert!(PassedGradient::measure(Vec::new()).unwrap().is_none());
    for pair in pairs() {
        for (second, finite) in [(0.0, true), (f64::NAN, false)] {
            let found = passed(pair, [[3.0, 0.0], [second, 4.0]]);
            assert_eq!(found.is_some(), has_kernels());
            if let Some((event, numbers)) = found {
                let found = event.read().expect("a device that can be read");
                assert!(numbers[0] < numbers[1] && found.output_finite && !found.overflow);
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
    let largest = 2f64.powi(if pair.0 == DType::F16 { 6 } else { 118 });
    for (came, left, expected) in [
        (fine, Some(bad), 512.0),
        (fine, Some(fine), 1024.0),
        (fine, None, 512.0),
        ([largest, 0.0], Some(fine), 512.0),
        ([largest / 2.0, 0.0], Some(fine), 1024.0),
        (bad, Some(bad), 1024.0),
    ] {
        let [input, gradient] = both::<1>(pair, [&[1.0; 2], &came], [2]);
        backward(&input, &gradient, on_device(1024.0, 1.0), &watch);
        let event = received.try_iter().last();
        let passed = left.and_then(|left| passed(pair, [left, fine]));
        let given = Vec::from_iter(passed.map(|(event, _)| event));
        // A million values are counted in another field.
        let many = vec![f64::INFINITY; 1 << 20];
        for (gradients, expected) in [(&bad[..], expected), (&many, expected), (&fine, 1024.0)] {
            let length = gradients.len();
            let mut list = TensorList::new();
            list.push(tensor::<1>(gradients, [length], DType::F32));
            let scale = ScaleState::new(1024.0).upload(&Device::default());
            let next = scale.advance(&inspect(list).unwrap(), event.as_ref(), &given);
            let found = next.read().scale;
            assert_eq!(found, expected, "{came:?} {left:?} {length} gradients");
        }
    }
}

//! A cast, and the gradient that comes to it, in every way that there is.

use std::sync::mpsc::{Receiver, channel};

use burn::tensor::{DType, FloatDType, Tensor};
use burn_amp_kernels::{EventStatus, Factor, UnreadEvent, Watch, scaled_cast, watched_cast};

use crate::device::has_kernels;
use crate::tensors::*;
use crate::{host, number};

/// A watch, and what it receives.
pub fn watch() -> (Watch, Receiver<UnreadEvent>) {
    let (sender, received) = channel();
    let watch = Watch::new(move |event| sender.send(event).unwrap());
    (watch, received)
}

/// The gradient of `input` where that of its cast is `gradient`.
pub fn backward<'a, const D: usize>(
    input: &Tensor<D>,
    gradient: &Tensor<D>,
    factor: impl Into<Factor>,
    watch: impl Into<Option<&'a Watch>>,
) -> Tensor<D> {
    let input = input.clone().require_grad();
    let output = watched_cast(input.clone(), gradient.dtype().into(), factor, watch);
    assert_eq!(output.dtype(), gradient.dtype());
    let grads = (output * gradient.clone()).sum().backward();
    let found = input.grad(&grads).expect("a leaf's gradient");
    let kind = (found.shape(), found.dtype());
    assert_eq!(kind, (input.shape(), input.dtype()));
    found
}

/// The cast has the values of Burn's. The gradient is the product with a factor of the host, with one whose other part is on the device, and watched or not; and a watch receives
/// what it should.
pub fn check<const D: usize>(input: &Tensor<D>, gradient: &Tensor<D>, factor: f64) {
    let dtypes = [input, gradient].map(Tensor::dtype);
    let pair = (dtypes[0], dtypes[1]);
    let both = [input, gradient].map(|tensor| values(tensor.clone()));
    let cast = scaled_cast(input.clone().require_grad(), pair.1.into(), factor);
    assert_same(
        &values(cast),
        &values(input.clone().cast(FloatDType::from(pair.1))),
    );
    let finite = both[0].iter().all(|value| value.is_finite());
    let (watch, received) = watch();
    let normal = |ratio: &f64| ((factor / ratio) as f32).is_normal();
    let there = [1.0, 0.25].into_iter().filter(normal);
    let there = there.map(|ratio| (on_device(factor, ratio), false));
    let here = [false, true].map(|watched| (Factor::from(factor), watched));
    for (factor_here, watched) in here.into_iter().chain(there) {
        let watch = watched.then_some(&watch);
        let found = values(backward(input, gradient, factor_here, watch));
        // The gradient does not depend on the values; the fallback's does where they are not finite.
        if finite || has_kernels() {
            assert_products(&both[1], &found, pair, factor);
        }
    }
    let events: Vec<UnreadEvent> = received.try_iter().collect();
    let expected = usize::from(has_kernels());
    assert_eq!(events.len(), expected, "{dtypes:?}");
    for event in events {
        assert_event(
            event.read().expect("a device that can be read"),
            &both,
            dtypes,
            factor,
        );
    }
}

/// What is found in an event is what the host finds: overflow is where the gradient was finite and the product is not.
fn assert_event(found: EventStatus, both: &[Vec<f64>; 2], dtypes: [DType; 2], factor: f64) {
    let [inputs, gradients] = both;
    let what = format!("{dtypes:?}, {factor:e}: {found:?}");
    let all_finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
    let finite = gradients.iter().filter(|value| value.is_finite());
    let finite: Vec<f64> = finite.copied().collect();
    let product = |value: &f64| host::product(dtypes[1], *value, factor as f32);
    let rounded = |value: &f64| number::rounded(dtypes[0], product(value));
    let overflow = finite.iter().any(|value| rounded(value).is_infinite());
    let flags = [found.output_finite, found.gradient_finite, found.overflow];
    let expected = [all_finite(inputs), all_finite(gradients), overflow];
    assert_eq!(flags, expected, "{what}");
    assert_eq!(found.elements, inputs.len() as u64, "{what}");
    let largest = finite
        .iter()
        .fold(0.0, |most: f64, value| most.max(value.abs()));
    let [largest, norm] = [largest, host::norm(&finite)].map(|size| size * factor.abs());
    for (found, expected) in [(found.max_abs, largest), (found.norm, norm)] {
        assert!(
            (found - expected).abs() <= 1e-5 * expected,
            "{what}: {expected:e}"
        );
    }
}

//! A cast, and the gradient that comes to it, in every way that there is.

use std::sync::mpsc::{Receiver, channel};

use super::*;

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
) -> Vec<f64> {
    let input = input.clone().require_grad();
    let output = watched_cast(input.clone(), gradient.dtype().into(), factor, watch);
    assert_eq!(output.dtype(), gradient.dtype());
    let grads = (output * gradient.clone()).sum().backward();
    let found = input.grad(&grads).expect("a leaf's gradient");
    let kind = (found.shape(), found.dtype());
    assert_eq!(kind, (input.shape(), input.dtype()));
    values(&found)
}

/// The cast has the values of Burn's. The gradient is the product with a factor of the host, watched or not, and with one that is on the device or of which neither
/// part alone leaves it in range; and a watch receives what it should, of both or of the gradient alone.
pub fn check<const D: usize>(input: &Tensor<D>, gradient: &Tensor<D>, factor: f64) {
    let pair = (input.dtype(), gradient.dtype());
    let both = [input, gradient].map(values);
    let cast = scaled_cast(input.clone().require_grad(), pair.1.into(), factor);
    let expected = input.clone().cast(FloatDType::from(pair.1));
    assert_same(&values(&cast), &values(&expected), "what is cast");
    let finite = both[0].iter().all(|value| value.is_finite());
    let (sender, received) = channel();
    let send = move |event: UnreadEvent| sender.send(event).unwrap();
    let [of_both, of_gradient] = [Watch::new(send.clone()), Watch::of_gradient(send)];
    let watches = [None, Some(&of_both), Some(&of_gradient)];
    let far = 2f64.powi(if factor.abs() < 1.0 { -100 } else { 100 });
    let there = [1.0, far].map(|ratio| (on_device(factor, ratio), None));
    let here = watches.map(|watch| (Factor::from(factor), watch));
    for (factor_here, watch) in here.into_iter().chain(there) {
        let found = backward(input, gradient, factor_here, watch);
        // The gradient does not depend on the values; the fallback's does where they are not finite.
        if finite || has_kernels() {
            assert_products(&both[1], &found, pair, factor);
        }
    }
    let events: Vec<UnreadEvent> = received.try_iter().collect();
    assert_eq!(events.len(), if has_kernels() { 2 } else { 0 }, "{pair:?}");
    for (event, of_both) in events.into_iter().zip([true, false]) {
        assert_event(event, of_both, &both, pair, factor);
    }
}

/// What is found in an event is what the host finds: overflow is where the gradient was finite and the product is not.
fn assert_event(
    event: UnreadEvent,
    of_both: bool,
    [inputs, gradients]: &[Vec<f64>; 2],
    (from, to): Pair,
    factor: f64,
) {
    let found = event.clone().read().expect("a device that can be read");
    let (gradient, input) = event.read_measures().expect("the same");
    let what = format!("{from:?}, {to:?}, {factor:e}: {found:?}, {gradient:?}, {input:?}");
    let measured = |values, dtype| measure([dtype; 2], values, values, f32::INFINITY);
    assert_status(&gradient, &measured(gradients, to), 1e-5, &what);
    assert_eq!(input.is_some(), of_both, "{what}");
    if let Some(input) = input {
        assert_status(&input, &measured(inputs, from), 1e-5, &what);
    }
    let product = |value: &f64| rounded(from, product(to, *value, factor as f32));
    let overflows = |value: &f64| value.is_finite() && product(value).is_infinite();
    let expected = EventStatus {
        output_finite: input.is_none_or(|input| input.non_finite == 0),
        gradient_finite: gradient.non_finite == 0,
        overflow: gradients.iter().any(overflows),
        max_abs: gradient.max_abs * factor.abs(),
        norm: gradient.norm * factor.abs(),
        elements: gradient.elements,
    };
    assert_eq!(found, expected, "{what}");
}

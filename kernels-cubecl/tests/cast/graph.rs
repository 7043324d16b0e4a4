//! Where in a graph it stands.

use burn::tensor::{
    DType, Device, FloatDType, Tensor,
    activation::{gelu, relu},
};
use burn_amp_kernels::{Factor, Watch, scaled_cast, watched_cast};

use crate::{
    device::has_kernels,
    host::{autodiff, data, narrowest, on_device, pairs, tensor, values},
    watch::watch,
};

#[test]
fn a_tensor_used_twice() {
    for (from, to) in pairs() {
        let input = tensor::<1>(&[1.0, 2.0], [2], from).require_grad();
        let one = scaled_cast(input.clone(), to, 4.0);
        let other = scaled_cast(input.clone(), to, 16.0);
        let plain = input.clone().cast(to);
        let sum = one.clone() + other * 2.0 + plain + one;
        let grad = input.grad(&sum.sum().backward()).unwrap();
        assert_eq!(values(grad), [4.0 + 32.0 + 1.0 + 4.0; 2]);
    }
}

#[test]
fn inputs_that_are_no_leaves() {
    let narrow = narrowest();
    let leaf = tensor::<1>(&[1.0, -2.0], [2], narrow).require_grad();
    let inner = leaf.clone() * 3.0;
    let output = scaled_cast(inner, FloatDType::F32, 32.0);
    assert!(output.is_tracked() && !output.is_require_grad());
    let grads = (output * 0.5).sum().backward();
    assert_eq!(values(leaf.grad(&grads).unwrap()), [48.0; 2]);
}

/// Gradients of a network that is cast in and out, with or without checkpoints.
fn network(
    device: &Device,
    watch: Option<&Watch>,
    factor: impl Fn(f64) -> Factor,
) -> Vec<Vec<f32>> {
    let narrow = narrowest();
    let leaf = |shape: [usize; 2], dtype: FloatDType| {
        let ramp = (0..shape[0] * shape[1]).map(|i| (i as f32 - 20.0) / 32.0);
        let values = data(&ramp.collect::<Vec<_>>(), shape, dtype);
        Tensor::<2>::from_data(values, (device, DType::from(dtype))).require_grad()
    };
    let input = leaf([4, 8], FloatDType::F32);
    let weight = leaf([8, 8], narrow);
    let cast = |tensor: Tensor<2>, dtype, by| match watch {
        Some(watch) => watched_cast(tensor, dtype, factor(by), watch),
        None => scaled_cast(tensor, dtype, factor(by)),
    };
    // Operations on both sides that Burn computes again where it checkpoints.
    let before = relu(input.clone() * 1.5) + 0.25;
    let hidden = cast(before, narrow, 1.0 / 1024.0);
    let hidden = gelu((hidden * 0.5).matmul(weight.clone()));
    let hidden = hidden.clone() * hidden.exp();
    let output = cast(hidden, FloatDType::F32, 1024.0).powi_scalar(2) + 1.0;
    let grads = output.sqrt().mean().backward();
    [input.grad(&grads), weight.grad(&grads)]
        .map(|grad| values(grad.unwrap()))
        .to_vec()
}

fn assert_close(found: &[Vec<f32>], expected: &[Vec<f32>]) {
    for (found, expected) in found.iter().zip(expected) {
        let magnitudes = expected.iter().map(|value| value.abs());
        let largest = magnitudes.fold(0f32, f32::max);
        assert!(largest > 0.0);
        for (found, expected) in found.iter().zip(expected) {
            // Fused in other ways, operations round in others.
            let error = (found - expected).abs();
            assert!(error <= 4e-3 * largest, "{found} for {expected}");
        }
    }
}

#[test]
fn checkpoints() {
    let there = |factor| on_device(factor, 4.0);
    let expected = network(&autodiff(), None, Factor::from);
    let checkpointing = autodiff().gradient_checkpointing();
    assert_close(&network(&autodiff(), None, there), &expected);

    let (watch, told) = watch();
    for watch in [None, Some(&watch)] {
        assert_close(&network(&checkpointing, watch, Factor::from), &expected);
        assert_close(&network(&checkpointing, watch, there), &expected);
    }
    let crossings = if has_kernels() { 4 } else { 0 };
    assert_eq!(told.try_iter().count(), crossings);
}

/// What is recomputed for a backward pass may be the cast's own input, or read its output.
#[test]
fn recomputed_around_a_cast() {
    let device = autodiff().gradient_checkpointing();
    for (from, to) in pairs() {
        let values_of = data(&[1.0, 2.0, -4.0], [3], from);
        let input = Tensor::<1>::from_data(values_of, (&device, DType::from(from)));
        let input = input.require_grad();
        let inner = (input.clone() * 2.0).abs();
        let output = scaled_cast(inner.clone(), to, 8.0);
        let grads = (output.clone() * output * 0.5).sum().backward();
        // |2 x| times 8, times the sign, times 2.
        assert_eq!(values(input.grad(&grads).unwrap()), [32.0, 64.0, -128.0]);
    }
}

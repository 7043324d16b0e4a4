//! Random shapes, layouts, values and factors.

use burn::tensor::Tensor;
use burn_amp_kernels::scaled_cast;
use proptest::prelude::*;

use crate::{
    host::{assert_products, assert_same, backward, on_device, pairs, round, tensor, values},
    random::{Bits, check_random},
};

/// Which pair of dtypes, and the seed of the values; the shape; what view of it; the factor, and that which the device has not.
type Recipe = ((usize, u64), Vec<usize>, usize, (f64, Option<f64>));

fn recipe() -> impl Strategy<Value = Recipe> {
    let shape = prop_oneof![
        4 => prop::collection::vec(1usize..7, 1..=4),
        1 => prop::collection::vec(1usize..70_000, 1..=1),
        1 => prop::collection::vec(1usize..150, 2..=2),
    ];
    let factor = prop_oneof![
        (-126..=126i32).prop_map(|exponent| 2f64.powi(exponent)),
        1e-6f64..1e6,
        any::<f32>()
            .prop_filter("finite", |f| f.is_finite())
            .prop_map(f64::from),
    ];
    let ratio = prop::option::of((-9..=9i32).prop_map(|exponent| 2f64.powi(exponent)));
    (
        (any::<usize>(), any::<u64>()),
        shape,
        0..4usize,
        (factor, ratio),
    )
}

/// Numbers of f32, one in eight of them any bits.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut bits = Bits(seed);
    let value = |bits: u64| match bits & 7 {
        0 => f32::from_bits((bits >> 32) as u32),
        _ => {
            ((bits >> 32) as u32 as f32 - 2f32.powi(31)) * 2f32.powi(-31 - (bits >> 8 & 15) as i32)
        }
    };
    (0..count).map(|_| value(bits.draw())).collect()
}

fn check<const D: usize>(((pair, seed), shape, view, (factor, ratio)): Recipe) {
    let pairs = pairs();
    let (from, to) = pairs[pair % pairs.len()];
    let shape: [usize; D] = shape.try_into().expect("rank");
    let exact = |ratio: &f64| ((factor / ratio) as f32).is_normal();
    let own = match ratio.filter(exact) {
        Some(ratio) => on_device(factor, ratio),
        None => factor.into(),
    };
    let view = |tensor: Tensor<D>| match view {
        1 => tensor.swap_dims(0, D - 1),
        2 => tensor.flip([D - 1]),
        3 => tensor.narrow(0, shape[0] / 3, shape[0] - shape[0] / 3),
        _ => tensor,
    };
    let all = |seed, dtype| {
        let numbers = numbers(seed, shape.iter().product()).into_iter();
        let numbers: Vec<f32> = numbers.map(|value| round(value, dtype)).collect();
        view(tensor::<D>(&numbers, shape, dtype))
    };
    // The fallback multiplies no gradients of values that are not finite.
    let input = view(tensor::<D>(&vec![0.5; shape.iter().product()], shape, from));
    let gradient = all(!seed, to);
    let gradients = values(gradient.clone());
    let found = backward(input, to, own.clone(), gradient);
    assert_products(&gradients, &values(found), (from, to), factor);

    let input = all(seed, from);
    let cast = values(input.clone().cast(to));
    let forward = values(scaled_cast(input.require_grad(), to, own));
    assert_same(&forward, &cast);
}

#[test]
fn random_casts() {
    check_random(96, recipe(), |recipe| match recipe.1.len() {
        1 => check::<1>(recipe),
        2 => check::<2>(recipe),
        3 => check::<3>(recipe),
        _ => check::<4>(recipe),
    });
}

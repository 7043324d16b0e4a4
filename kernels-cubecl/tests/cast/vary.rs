//! Random shapes, layouts, values and factors.

use burn::tensor::Tensor;
use burn_amp_kernels::{Factor, scaled_cast};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::host::{assert_products, backward, on_device, pairs, round, tensor, values};

#[derive(Clone, Debug)]
struct Recipe {
    pair: usize,
    shape: Vec<usize>,
    view: usize,
    factor: f64,
    ratio: Option<f64>,
    seed: u64,
}

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
        any::<usize>(),
        shape,
        0..4usize,
        factor,
        ratio,
        any::<u64>(),
    )
        .prop_map(|(pair, shape, view, factor, ratio, seed)| Recipe {
            pair,
            shape,
            view,
            factor,
            ratio,
            seed,
        })
}

impl Recipe {
    fn factor(&self) -> Factor {
        let exact = |ratio: &f64| ((self.factor / ratio) as f32).is_normal();
        match self.ratio.filter(exact) {
            Some(ratio) => on_device(self.factor, ratio),
            None => self.factor.into(),
        }
    }
}

/// Bits of f32 that are pseudorandom (S. Vigna, "splitmix64"), one in eight of them any bits.
fn numbers(mut seed: u64, count: usize) -> Vec<f32> {
    let mut draw = || {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let value = |bits: u64| match bits & 7 {
        0 => f32::from_bits((bits >> 32) as u32),
        _ => {
            ((bits >> 32) as u32 as f32 - 2f32.powi(31)) * 2f32.powi(-31 - (bits >> 8 & 15) as i32)
        }
    };
    (0..count).map(|_| value(draw())).collect()
}

fn check<const D: usize>(recipe: &Recipe) {
    let pairs = pairs();
    let (from, to) = pairs[recipe.pair % pairs.len()];
    let shape: [usize; D] = recipe.shape.clone().try_into().expect("rank");
    let view = |tensor: Tensor<D>| match recipe.view {
        1 => tensor.swap_dims(0, D - 1),
        2 => tensor.flip([D - 1]),
        3 => tensor.narrow(0, shape[0] / 3, shape[0] - shape[0] / 3),
        _ => tensor,
    };
    let all = |seed, dtype| {
        let numbers = numbers(seed, shape.iter().product());
        let numbers: Vec<f32> = numbers
            .into_iter()
            .map(|value| round(value, dtype))
            .collect();
        view(tensor::<D>(&numbers, shape, dtype))
    };
    // The fallback multiplies no gradients of values that are not finite.
    let input = view(tensor::<D>(&vec![0.5; shape.iter().product()], shape, from));
    let gradient = all(!recipe.seed, to);
    let gradients = values(gradient.clone());
    let found = backward(input, to, recipe.factor(), gradient);
    assert_products(&gradients, &values(found), (from, to), recipe.factor);

    let input = all(recipe.seed, from);
    let cast = values(input.clone().cast(to));
    let forward = values(scaled_cast(input.require_grad(), to, recipe.factor()));
    assert!(
        cast.iter()
            .zip(&forward)
            .all(|(a, b)| crate::host::same(*a, *b))
    );
}

#[test]
fn random_casts() {
    let config = Config {
        cases: 96,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&recipe(), |recipe| {
            match recipe.shape.len() {
                1 => check::<1>(&recipe),
                2 => check::<2>(&recipe),
                3 => check::<3>(&recipe),
                _ => check::<4>(&recipe),
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

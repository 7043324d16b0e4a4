//! Lengths, and gradients and inputs that do not lie in order.

use burn::tensor::Tensor;
use burn_amp_kernels::scaled_cast;

use crate::check::check;
use crate::device::{narrow_dtypes, pairs};
use crate::tensors::{Pair, assert_products, tensor, values};
use crate::views::planes;

/// Numbers that every dtype has, in both dtypes of a pair.
fn both<const D: usize>((from, to): Pair, shape: [usize; D]) -> [Tensor<D>; 2] {
    let length: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..length).map(|i| (i % 251) as f64 - 100.0).collect();
    [from, to].map(|dtype| tensor(&numbers, shape, dtype))
}

#[test]
fn lengths() {
    for pair in pairs() {
        for length in [
            1, 2, 3, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537, 200_002,
        ] {
            let [input, gradient] = both(pair, [length]);
            check(&input, &gradient, 0.3);
        }
    }
}

#[test]
fn views() {
    for pair in pairs() {
        for view in planes() {
            // Either of them, and both.
            let viewed = both(pair, [37, 54]).map(view);
            let dense = both(pair, viewed[0].dims());
            check(&viewed[0], &dense[1], 0.3);
            check(&dense[0], &viewed[1], 0.3);
            check(&viewed[0], &viewed[1], 0.3);
        }
        // Of many dimensions, in order and not.
        let solid = both(pair, [3, 1, 4, 5, 1, 6]);
        let turned = solid.clone().map(|solid| solid.permute([3, 0, 5, 1, 2, 4]));
        for [input, gradient] in [solid, turned] {
            check(&input, &gradient, 0.3);
        }
    }
}

/// What is in place of a gradient must not be in place of another's.
#[test]
fn shared_gradients_stay() {
    for dtype in narrow_dtypes() {
        let leaf = || tensor::<1>(&[1.0, 2.0, 3.0], [3], dtype).require_grad();
        let leaves = [1.0, 4.0, 0.1].map(|factor| (leaf(), factor));
        let cast =
            |(leaf, factor): &(Tensor<1>, f64)| scaled_cast(leaf.clone(), dtype.into(), *factor);
        let sum = leaves.iter().map(cast).reduce(|a, b| a + b).unwrap();
        let weights = [1.0, -2.0, 0.5];
        let grads = (sum * tensor(&weights, [3], dtype)).sum().backward();
        for (leaf, factor) in leaves {
            assert_products(
                &weights,
                &values(leaf.grad(&grads).unwrap()),
                (dtype, dtype),
                factor,
            );
        }
    }
}

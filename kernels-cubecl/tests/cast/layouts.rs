//! Lengths, and gradients and inputs that do not lie in order.

use burn::tensor::Tensor;
use burn_amp_kernels::scaled_cast;

use crate::check::check;
use crate::host::{Pair, dtypes, pairs, round, tensor, values};
use crate::views::planes;

/// Numbers that every dtype has, in both dtypes of a pair.
pub fn both<const D: usize>((from, to): Pair, shape: [usize; D]) -> [Tensor<D>; 2] {
    let length: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..length).map(|i| (i % 251) as f32 - 100.0).collect();
    [from, to].map(|dtype| tensor(&numbers, shape, dtype))
}

#[test]
fn lengths() {
    for pair in pairs() {
        for length in [
            2, 3, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537, 200_002,
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
        let [input, gradient] = both(pair, [3, 4, 5, 6]).map(|solid| solid.permute([2, 0, 3, 1]));
        check(&input, &gradient, 0.3);
    }
}

/// What is in place of a gradient must not be in place of another's.
#[test]
fn shared_gradients_stay() {
    for dtype in dtypes() {
        let leaf = || tensor::<1>(&[1.0, 2.0, 3.0], [3], dtype).require_grad();
        let (a, b, c) = (leaf(), leaf(), leaf());
        let sum =
            a.clone() + scaled_cast(b.clone(), dtype, 4.0) + scaled_cast(c.clone(), dtype, 0.1);
        let weights = tensor::<1>(&[1.0, -2.0, 0.5], [3], dtype);
        let grads = (sum * weights).sum().backward();
        let of = |leaf: Tensor<1>| values(leaf.grad(&grads).unwrap());
        assert_eq!(of(a), [1.0, -2.0, 0.5]);
        assert_eq!(of(b), [4.0, -8.0, 2.0]);
        assert_eq!(of(c), [0.1, -0.2, 0.05].map(|value| round(value, dtype)));
    }
}

//! Gradients and inputs that do not lie in order, and shapes.

use burn::tensor::Tensor;
use burn_amp_kernels::{Factor, scaled_cast};

use crate::host::*;
use crate::views::planes;

/// Numbers that every dtype has.
pub fn count(length: usize) -> Vec<f32> {
    (0..length).map(|i| (i % 251) as f32 - 100.0).collect()
}

/// With a factor of the host, and one of the device.
pub fn check<const D: usize>(input: Tensor<D>, gradient: Tensor<D>, (from, to): Pair) {
    let expected = values(gradient.clone());
    let forward = values(input.clone().cast(to));
    for factor in [Factor::from(0.3), on_device(0.3, 2.0)] {
        let output = scaled_cast(input.clone().require_grad(), to, factor.clone());
        assert_eq!(values(output), forward);
        let found = backward(input.clone(), to, factor, gradient.clone());
        assert_eq!((found.shape(), found.dtype()), (input.shape(), from.into()));
        assert_products(&expected, &values(found), (from, to), 0.3);
    }
}

#[test]
fn views() {
    for (from, to) in pairs() {
        let plane = |dtype| tensor::<2>(&count(37 * 54), [37, 54], dtype);
        for view in planes() {
            // Either of them, and both.
            let dense = |dtype, like: &Tensor<2>| {
                let [rows, columns] = like.dims();
                tensor::<2>(&count(rows * columns), [rows, columns], dtype)
            };
            let (input, gradient) = (view(plane(from)), view(plane(to)));
            check(input.clone(), dense(to, &input), (from, to));
            check(dense(from, &input), gradient.clone(), (from, to));
            check(input, gradient, (from, to));
        }
        let solid = |dtype| tensor::<4>(&count(360), [3, 4, 5, 6], dtype).permute([2, 0, 3, 1]);
        check(solid(from), solid(to), (from, to));
    }
}

#[test]
fn lengths() {
    for (from, to) in pairs() {
        for length in [
            2, 3, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537, 200_002,
        ] {
            let line = |dtype| tensor(&count(length), [length], dtype);
            check(line(from), line(to), (from, to));
        }
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

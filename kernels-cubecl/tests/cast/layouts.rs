//! Lengths, and gradients and inputs that do not lie in order.

use super::*;

/// Numbers that every dtype has, in both dtypes of a pair.
fn numbers<const D: usize>(pair: Pair, shape: [usize; D]) -> [Tensor<D>; 2] {
    let length: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..length).map(|i| (i % 251) as f64 - 100.0).collect();
    both(pair, [&numbers; 2], shape)
}

#[test]
fn lengths() {
    for pair in pairs() {
        for length in [
            1, 2, 3, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_536, 65_537, 200_002,
        ] {
            let [input, gradient] = numbers(pair, [length]);
            check(&input, &gradient, 0.3);
        }
    }
}

#[test]
fn views() {
    for pair in pairs() {
        for view in planes() {
            let viewed = numbers(pair, [37, 54]).map(view);
            let dense = numbers(pair, viewed[0].dims());
            // Either of them, and both.
            for [input, gradient] in [[&viewed, &dense], [&dense, &viewed], [&viewed; 2]] {
                check(&input[0], &gradient[1], 0.3);
            }
        }
        // Of many dimensions, in order and not.
        let solid = numbers(pair, [3, 1, 4, 5, 1, 6]);
        let turned = solid.clone().map(|solid| solid.permute([3, 0, 5, 1, 2, 4]));
        for [input, gradient] in [solid, turned] {
            check(&input, &gradient, 0.3);
        }
    }
}

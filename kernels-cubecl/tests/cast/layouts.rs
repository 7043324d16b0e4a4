//! Shapes, and gradients and inputs that do not lie in order.

use burn::tensor::Tensor;
use burn_amp_kernels::{Factor, scaled_cast};

use crate::check::check;
use crate::host::{Pair, on_device, pairs, tensor};
use crate::views::planes;

/// Numbers that every dtype has, in both dtypes of a pair.
fn both<const D: usize>((from, to): Pair, shape: [usize; D]) -> [Tensor<D>; 2] {
    let length: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..length).map(|i| (i % 251) as f32 - 100.0).collect();
    [from, to].map(|dtype| tensor(&numbers, shape, dtype))
}

#[test]
fn shapes() {
    const LINES: [usize; 13] = [
        1, 2, 3, 7, 15, 16, 17, 1023, 1024, 1025, 65_535, 65_537, 200_002,
    ];
    for pair in pairs() {
        macro_rules! shapes {
            ($($shape:expr),+) => {$({
                let [input, gradient] = both(pair, $shape);
                check(&input, &gradient, 0.3);
            })+};
        }
        LINES.iter().for_each(|length| shapes!([*length]));
        shapes! { [2, 3], [1, 1], [2, 3, 4], [2, 1, 4], [2, 1, 4, 3], [1, 2, 3, 1, 4], [2, 1, 2, 3, 1, 2] }
    }
}

#[test]
fn empty_tensors() {
    for (from, to) in pairs() {
        for shape in [[0, 3], [3, 0], [0, 0]] {
            for factor in [Factor::from(3.0), on_device(4.0, 1.0)] {
                let input = tensor::<2>(&[], shape, from).require_grad();
                let output = scaled_cast(input, to, factor);
                assert_eq!((output.dims(), output.dtype()), (shape, to.into()));
            }
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

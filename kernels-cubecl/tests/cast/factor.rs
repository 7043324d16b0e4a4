//! Factors that only the device knows, beside numbers of the host.

use burn::tensor::{DType, Device, Tensor, s};
use burn_amp_kernels::{Factor, scaled_cast};

use crate::layouts::{check, count};

use crate::host::*;

/// Those of the host, and the same on the device.
#[test]
fn gradients_of_every_pair() {
    for (from, to) in pairs() {
        let all = every_value(to);
        let found = |factor: Factor| {
            let input = tensor(&vec![0.5; all.len()], [all.len()], from);
            let found = backward(input, to, factor, tensor(&all, [all.len()], to));
            assert_eq!(found.dtype(), DType::from(from));
            values(found)
        };
        for factor in FACTORS {
            let known = found(factor.into());
            assert_products(&all, &known, (from, to), factor);
            let normal = |ratio: &f64| ((factor / ratio) as f32).is_normal();
            for ratio in [1.0, 0.25].into_iter().filter(normal) {
                let found = found(on_device(factor, ratio));
                match factor == 1.0 {
                    // As a number it leaves alone what a device flushes in a product.
                    true => assert_products(&all, &found, (from, to), factor),
                    false => assert_same(&found, &known),
                }
            }
        }
    }
}

/// The two are multiplied first, in f32: neither the one nor the other alone would leave a gradient in range.
#[test]
fn the_product_is_taken_first() {
    for (from, to) in pairs() {
        let large = 2f64.powi(100);
        for (ratio, scale) in [(large, 1.0 / large), (1.0 / large, large)] {
            let gradients = [1.0, -1.5, 2f32.powi(14), 2f32.powi(-14)];
            let factor = on_device(ratio * scale, ratio);
            let input = tensor(&[0.5; 4], [4], from);
            let found = backward(input, to, factor, tensor(&gradients, [4], to));
            assert_eq!(values(found), gradients, "{ratio:e}");
        }
    }
}

#[test]
fn ranks() {
    for (from, to) in pairs() {
        macro_rules! rank {
            ($($shape:expr),+) => {$({
                let numbers = count($shape.iter().product());
                let [input, gradient] = [from, to].map(|dtype| tensor(&numbers, $shape, dtype));
                check(input, gradient, (from, to));
            })+};
        }
        rank! { [1], [7], [2, 3], [1, 1], [2, 3, 4], [2, 1, 4], [2, 1, 4, 3], [1, 2, 3, 1, 4], [2, 1, 2, 3, 1, 2] }
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

/// A scale that moves is another tensor, and what was cast before keeps its own.
#[test]
fn each_graph_keeps_its_own() {
    for (from, to) in pairs() {
        let leaf = tensor::<1>(&[1.0, 2.0], [2], from).require_grad();
        let mut scale = Tensor::<1>::from_floats([16.0], &Device::default());
        let mut outputs = Vec::new();
        for _ in 0..3 {
            let factor = Factor::on_device(0.5, scale.clone());
            outputs.push(scaled_cast(leaf.clone(), to, factor));
            scale = scale * 4.0;
        }
        for (output, expected) in outputs.into_iter().zip([8.0, 32.0, 128.0]).rev() {
            let grads = output.sum().backward();
            assert_eq!(values(leaf.grad(&grads).unwrap()), [expected; 2]);
        }
        assert_eq!(values(scale), [1024.0]);
    }
}

/// Words of a state, tensors of other dtypes, of graphs, and of another device.
#[test]
fn where_the_factor_comes_from() {
    let words = Tensor::<1>::from_floats([0.0, 3.0, 32.0, 7.0], &Device::default());
    let tracked = Tensor::<1>::from_floats([32.0], &autodiff().gradient_checkpointing());
    let tracked = tracked.require_grad();
    let [leaf, inner] = [tracked.clone(), tracked.clone() * 1.0];
    let mut factors = vec![words.slice(s![2..3]), leaf, inner];
    for dtype in dtypes() {
        factors.push(Tensor::<1>::from_floats([32.0], &Device::default()).cast(dtype));
    }
    #[cfg(feature = "flex")]
    factors.push(Tensor::from_floats([32.0], &Device::flex()));
    for scale in factors {
        for (from, to) in pairs() {
            let input = tensor::<1>(&[1.0, 2.0], [2], from).require_grad();
            let output = scaled_cast(input.clone(), to, Factor::on_device(0.125, scale.clone()));
            let grads = output.sum().backward();
            assert_eq!(values(input.grad(&grads).unwrap()), [4.0; 2]);
            assert!(tracked.grad(&grads).is_none());
        }
    }
}

#[test]
#[should_panic(expected = "`scale` is one value, not 2")]
fn a_factor_is_one_value() {
    let _ = Factor::on_device(1.0, Tensor::from_floats([1.0, 2.0], &Device::default()));
}

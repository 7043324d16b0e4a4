//! What comes out, bit for bit.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_amp_kernels::{Factor, Watch, scaled_cast, watched_cast};

use crate::check::{backward, check};
use crate::device::{is_cube, narrow_dtypes, pairs};
use crate::skipped::skipped;
use crate::{number::rounded, tensors::*};

/// Every value goes forward, and every one comes back.
#[test]
fn every_pair() {
    for (from, to) in pairs() {
        let gradients = every_value(to);
        let shape = [gradients.len()];
        let input = tensor(&vec![0.5; shape[0]], shape, from);
        for factor in FACTORS {
            check(&input, &tensor(&gradients, shape, to), factor);
        }
        let inputs = every_value(from);
        let shape = [inputs.len()];
        let ones = tensor(&vec![1.0; shape[0]], shape, to);
        check(&tensor(&inputs, shape, from), &ones, 8.0);
    }
}

/// What is not finite on either way, zeros, and products at the edge of the input's dtype: those that fit, and those that overflow.
#[test]
fn special_values() {
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    for (from, to) in pairs() {
        let check = |inputs: [f64; 4], gradients: [f64; 4], factor| {
            let input = tensor(&inputs, [4], from);
            check(&input, &tensor(&gradients, [4], to), factor);
        };
        for factor in [1.0, 2.0, -2.0, 65536.0] {
            check([1.0, -2.0, 0.5, 0.0], [1.0, -3.0, 0.0, 2.0], factor);
            check([1.0, -2.0, 0.5, 0.0], [0.0; 4], factor);
            for bad in [infinity, -infinity, nan] {
                check([1.0; 4], [1.0, bad, 3.0, 0.0], factor);
                check([1.0, 2.0, bad, -0.0], [1.0, 2.0, 3.0, bad], factor);
            }
        }
        let edges = match from {
            DType::F16 => [65504.0, 65519.0, 65520.0, 65536.0],
            DType::BF16 => [0x7F7F_0000, 0x7F7F_7FFF, 0x7F7F_8000, 0x7F7F_FFFF]
                .map(|bits| f64::from(f32::from_bits(bits))),
            _ => [f32::MAX.into(); 4],
        };
        // Powers of two, which change no bit, those beyond f32, and one that is rounded up to the edge.
        for (edge, exponent) in edges
            .into_iter()
            .flat_map(|edge| [0, 1, 16, 120].map(|by| (edge, by)))
        {
            let gradient = rounded(to, edge * 2f64.powi(-exponent));
            check(
                [1.0; 4],
                [gradient, 0.0, gradient / 4.0, 1e-3],
                2f64.powi(exponent),
            );
        }
        check([1.0; 4], [4096.0, 0.0, 0.0, 0.0], 65519.999 / 4096.0);
    }
}

/// The two parts of a factor are multiplied first, in f32: neither the one nor the other alone would leave a gradient in range.
#[test]
fn the_product_is_taken_first() {
    for (from, to) in pairs() {
        let large = 2f64.powi(100);
        for (ratio, scale) in [(large, 1.0 / large), (1.0 / large, large)] {
            let gradients = [1.0, -1.5, 2f64.powi(14), 2f64.powi(-14)];
            let [input, gradient] = [(from, [0.5; 4]), (to, gradients)]
                .map(|(dtype, values)| tensor(&values, [4], dtype));
            let found = backward(&input, &gradient, on_device(ratio * scale, ratio), None);
            assert_eq!(values(found), gradients, "{ratio:e}");
        }
    }
}

#[test]
fn empty_tensors() {
    for (from, to) in pairs() {
        for shape in [[0, 3], [3, 0], [0, 0]] {
            for factor in [Factor::from(3.0), on_device(4.0, 1.0)] {
                let input = tensor::<2>(&[], shape, from).require_grad();
                let output = scaled_cast(input, to.into(), factor);
                assert_eq!((output.dims(), output.dtype()), (shape, to));
            }
        }
    }
}

/// f64 passes as it is, and to f64 there is no kernel: Burn's operations do it, and no watch is called.
#[test]
fn doubles() {
    if !Device::default().supports_dtype(DType::F64) {
        return skipped("no f64");
    }
    let watch = Watch::new(|_| panic!("no kernel"));
    let data = || TensorData::from([1.0f64 / 3.0, 1e300]);
    for dtype in [FloatDType::F32, FloatDType::F16] {
        let input = Tensor::<1>::from_data(data(), (&autodiff(), DType::F64)).require_grad();
        let output = watched_cast(input.clone(), dtype, 65536.0, &watch);
        assert_eq!(output.to_data(), data());
        let grad = input.grad(&output.sum().backward()).unwrap();
        assert_eq!(grad.into_data(), TensorData::from([1.0f64; 2]));
    }
    if is_cube() {
        return skipped("casts to f64 there are Burn's");
    }
    for from in narrow_dtypes() {
        let input = tensor(&[1.5, f64::INFINITY, -0.0], [3], from).require_grad();
        let output = watched_cast(input.clone(), FloatDType::F64, 4.0, &watch);
        let expected = TensorData::from([1.5f64, f64::INFINITY, -0.0]);
        assert_eq!(output.to_data(), expected);
        let grads = output.narrow(0, 0, 1).sum().backward();
        assert_eq!(values(input.grad(&grads).unwrap())[0], 4.0);
    }
}

/// A leaf, what is made of one, and a constant: what is not tracked is cast.
#[test]
fn what_is_tracked_stays_so() {
    for (from, to) in pairs() {
        let constant = tensor(&[1.0, 2.0, -0.5], [3], from);
        let leaf = constant.clone().require_grad();
        for input in [constant.clone().inner(), constant, leaf.clone() * 1.0, leaf] {
            let output = scaled_cast(input.clone(), to.into(), 3.7);
            assert_eq!(
                (output.dtype(), output.is_tracked()),
                (to, input.is_tracked())
            );
            assert_eq!(values(output), [1.0, 2.0, -0.5]);
        }
    }
}

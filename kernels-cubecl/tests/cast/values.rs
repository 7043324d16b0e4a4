//! What comes out, bit for bit.

use super::*;

/// Every value goes forward, and every one comes back.
#[test]
fn every_pair() {
    for (from, to) in pairs() {
        let gradients = every_value(to);
        let shape = [gradients.len()];
        let input = tensor(&vec![0.5; shape[0]], shape, from);
        for factor in FACTORS {
            check(&input, &tensor(&gradients, shape, to), factor);
            #[cfg(feature = "cubecl")]
            unfused::check(&gradients, (from, to), factor);
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
    for pair in pairs() {
        let check = |inputs: [f64; 4], gradients: [f64; 4], factor| {
            let [input, gradient] = both(pair, [&inputs, &gradients], [4]);
            check(&input, &gradient, factor);
        };
        for factor in [1.0, 2.0, -2.0, 65536.0] {
            check([1.0, -2.0, 0.5, 0.0], [1.0, -3.0, 0.0, 2.0], factor);
            check([1.0, -2.0, 0.5, 0.0], [0.0; 4], factor);
            for bad in [infinity, -infinity, nan] {
                check([1.0; 4], [1.0, bad, 3.0, 0.0], factor);
                check([1.0, 2.0, bad, -0.0], [1.0, 2.0, 3.0, bad], factor);
            }
        }
        let edges = match pair.0 {
            DType::F16 => [65504.0, 65519.0, 65520.0, 65536.0],
            DType::BF16 => [0x7F7F_0000, 0x7F7F_7FFF, 0x7F7F_8000, 0x7F7F_FFFF]
                .map(|bits| f64::from(f32::from_bits(bits))),
            _ => [f32::MAX.into(); 4],
        };
        // Powers of two, which change no bit, those beyond f32, and one that is rounded up to the edge.
        for edge in edges {
            for exponent in [0, 1, 16, 120] {
                let gradient = rounded(pair.1, edge * 2f64.powi(-exponent));
                let gradients = [gradient, 0.0, gradient / 4.0, 1e-3];
                check([1.0; 4], gradients, 2f64.powi(exponent));
            }
        }
        check([1.0; 4], [4096.0, 0.0, 0.0, 0.0], 65519.999 / 4096.0);
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
    let input = Tensor::<1>::from_data(data(), (&autodiff(), DType::F64)).require_grad();
    let output = watched_cast(input.clone(), FloatDType::F16, 65536.0, &watch);
    assert_eq!(output.to_data(), data());
    let grad = input.grad(&output.sum().backward()).unwrap();
    assert_eq!(grad.into_data(), TensorData::from([1.0f64; 2]));
    if is_cube() {
        return skipped("casts to f64 there are Burn's");
    }
    for from in narrow_dtypes() {
        let input = tensor(&[1.5, f64::INFINITY, -0.0], [3], from).require_grad();
        let output = watched_cast(input.clone(), FloatDType::F64, 4.0, &watch);
        assert_same(&values(&output), &[1.5, f64::INFINITY, -0.0], "in f64");
        let grads = output.narrow(0, 0, 1).sum().backward();
        assert_eq!(values(&input.grad(&grads).unwrap())[0], 4.0);
    }
}

/// A leaf, what is made of one, a constant, and what has no values: what is not tracked is cast.
#[test]
fn what_is_tracked_stays_so() {
    for (from, to) in pairs() {
        let constant = tensor(&[1.0, 2.0, -0.5], [1, 3], from);
        let leaf = constant.clone().require_grad();
        let mut inputs = vec![constant.clone().inner(), constant, leaf.clone() * 1.0, leaf];
        let empty = |shape| tensor(&[], shape, from).require_grad();
        inputs.extend([[0, 3], [3, 0], [0, 0]].map(empty));
        for input in inputs {
            for factor in [Factor::from(3.7), on_device(4.0, 1.0)] {
                let output = scaled_cast(input.clone(), to.into(), factor);
                let kind = (output.dims(), output.dtype(), output.is_tracked());
                assert_eq!(kind, (input.dims(), to, input.is_tracked()));
                assert_eq!(values(&output), values(&input));
            }
        }
    }
}

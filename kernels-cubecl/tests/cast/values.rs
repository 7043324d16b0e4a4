//! What comes out, bit for bit.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_amp_kernels::{Watch, scaled_cast, watched_cast};

use crate::{
    device::{has_kernels, is_cube},
    host::{assert_same, autodiff, backward, dtypes, every_value, pairs, same, tensor, values},
};

#[test]
fn forward_is_burns_cast() {
    for (from, to) in pairs() {
        let all = every_value(from);
        let input = tensor(&all, [all.len()], from);
        let cast = values(input.clone().cast(to));
        for input in [
            input.clone(),
            input.clone().require_grad(),
            input.clone().require_grad() * 1.0,
            input.inner(),
        ] {
            let before = values(input.clone().cast(to));
            let output = scaled_cast(input, to, 3.7);
            assert_eq!(output.dtype(), DType::from(to));
            let output = values(output);
            let wrong = (0..all.len()).find(|i| !same(output[*i], before[*i]));
            let wrong = wrong.map(|i| (all[i], output[i], cast[i]));
            assert_eq!(wrong, None, "{from:?} to {to:?}");
        }
    }
}

/// The gradient does not depend on the values; the fallback's does where they are not finite.
#[test]
fn inputs_that_are_not_finite() {
    for (from, to) in pairs() {
        let inputs = [1.0, f32::INFINITY, f32::NAN, f32::NEG_INFINITY, -0.0];
        let input = tensor(&inputs, [5], from);
        let output = values(scaled_cast(input.clone().require_grad(), to, 8.0));
        assert_same(&output, &inputs);

        let gradients = [1.0, 2.0, 3.0, f32::INFINITY, 4.0];
        let found = values(backward(input, to, 8.0, tensor(&gradients, [5], to)));
        let kept = if has_kernels() { 8.0 } else { 1.0 };
        assert_eq!(found, [8.0, 2.0 * kept, 3.0 * kept, f32::INFINITY, 32.0]);
    }
}

/// Half a unit above the largest value is infinite, and no sign gets lost.
#[test]
fn overflow_and_underflow() {
    if !dtypes().contains(&FloatDType::F16) {
        return;
    }
    let gradients = [
        65504.0, 65519.99, 65520.0, -65520.0, 1e30, -1e30, 6e-8, 2.9e-8, -2.9e-8, 1e-30,
    ];
    let (count, infinity) = (gradients.len(), f32::INFINITY);
    let [large, huge] = [[65504.0; 2], [infinity, -infinity]];
    let expected = [large, huge, huge].concat();
    let input = || tensor(&vec![1.0; count], [count], FloatDType::F16);
    for (factor, scale) in [(1.0 / 65536.0, 65536.0), (4.0, 0.25)] {
        let gradients = gradients.map(|gradient| gradient * scale);
        let gradient = tensor(&gradients, [count], FloatDType::F32);
        let found = values(backward(input(), FloatDType::F32, factor, gradient));
        assert_eq!(found[..6], expected);
        let near = |(a, b): (&f32, f32)| (a - b).abs() < 1e-7;
        let mut small = found[6..].iter().zip([6e-8, 0.0, -0.0, 0.0]);
        assert!(small.all(near), "{found:?}");
    }
}

#[test]
fn other_dtypes_pass_as_they_are() {
    let device = Device::default();
    if !device.supports_dtype(DType::F64) {
        return;
    }
    let third = || {
        let data = TensorData::from([1.0f64 / 3.0, 1e300]);
        Tensor::<1>::from_data(data, (&autodiff(), DType::F64)).require_grad()
    };
    let watch = Watch::new(|_| panic!("nothing crosses"));
    for output in [
        scaled_cast(third(), FloatDType::F32, 65536.0),
        watched_cast(third(), FloatDType::F32, 65536.0, &watch),
    ] {
        assert_eq!(output.to_data(), third().to_data());
    }
    let input = third();
    let output = scaled_cast(input.clone(), FloatDType::F16, 3.0);
    let grad = input.grad(&output.sum().backward()).unwrap();
    assert_eq!(grad.into_data(), TensorData::from([1.0f64; 2]));
}

/// To f64 there is no kernel: Burn's operations do it, and tell nothing.
#[test]
fn casts_to_f64() {
    if !Device::default().supports_dtype(DType::F64) || is_cube() {
        return;
    }
    for from in dtypes() {
        let input = tensor(&[1.5, f32::INFINITY, -0.0], [3], from).require_grad();
        let watch = Watch::new(|_| panic!("no kernel"));
        let output = watched_cast(input.clone(), FloatDType::F64, 4.0, &watch);
        let expected = TensorData::from([1.5f64, f64::INFINITY, -0.0]);
        assert_eq!(output.to_data(), expected);
        let grads = output.narrow(0, 0, 1).sum().backward();
        assert_eq!(values(input.grad(&grads).unwrap())[0], 4.0);
    }
}

#[test]
fn untracked_tensors_are_cast() {
    for (from, to) in pairs() {
        let watch = Watch::new(|_| panic!("nothing crosses"));
        let constant = tensor(&[1.0, 2.0], [2], from);
        for input in [constant.clone(), constant.inner()] {
            for output in [
                scaled_cast(input.clone(), to, 2.0),
                watched_cast(input, to, 2.0, &watch),
            ] {
                assert!(!output.is_tracked());
                assert_eq!(values(output), [1.0, 2.0]);
            }
        }
    }
}

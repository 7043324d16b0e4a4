//! What comes out, bit for bit.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_amp_kernels::{Watch, scaled_cast, watched_cast};

use crate::device::{has_kernels, is_cube};
use crate::host::{assert_same, autodiff, backward, dtypes, every_value, pairs, tensor, values};

#[test]
fn forward_is_burns_cast() {
    for (from, to) in pairs() {
        let all = every_value(from);
        let input = tensor(&all, [all.len()], from);
        let leaf = input.clone().require_grad();
        for input in [input.clone(), leaf.clone(), leaf * 1.0, input.inner()] {
            let before = values(input.clone().cast(to));
            let tracked = input.is_tracked();
            let output = scaled_cast(input, to, 3.7);
            let found = (output.dtype(), output.is_tracked());
            assert_eq!(found, (to.into(), tracked));
            assert_same(&values(output), &before);
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
    let plain = scaled_cast(third(), FloatDType::F32, 65536.0);
    let watched = watched_cast(third(), FloatDType::F32, 65536.0, &watch);
    for output in [plain, watched] {
        assert_eq!(output.to_data(), third().to_data());
    }
    let input = third();
    let output = scaled_cast(input.clone(), FloatDType::F16, 3.0);
    let grad = input.grad(&output.sum().backward()).unwrap();
    assert_eq!(grad.into_data(), TensorData::from([1.0f64; 2]));
}

/// To f64 there is no kernel: Burn's operations do it, and no watch is called.
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

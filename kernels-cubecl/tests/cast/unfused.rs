//! The kernel of CubeCL's backend, which Fusion does without.

use burn::{
    backend::{DispatchDevice, TensorMetadata, ops::FloatTensorOps, tensor::Device as DeviceOf},
    tensor::{DType, Device, FloatDType, Slice},
};
use burn_amp_kernels::{AmpOps, Job, TensorVec};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use crate::host::{FACTORS, assert_products, data, every_value, pairs, widen};

fn device() -> Option<DeviceOf<CubeBackend>> {
    match Device::default().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

fn values(tensor: CubeTensor) -> Vec<f32> {
    let data = burn_std::reader::try_read_sync(CubeBackend::float_into_data(tensor));
    widen(
        &data
            .expect("a device that can be read")
            .expect("a device that is well"),
    )
}

fn check(gradient: CubeTensor, pair: (FloatDType, FloatDType), factor: f64) {
    let (dtype, shape) = (pair.0, gradient.shape());
    let expected = values(gradient.clone());
    let check = |known, scale: Option<CubeTensor>| {
        let tensors = [gradient.clone()].into_iter().chain(scale);
        let job = Job::MulCast {
            dtype,
            factor: known,
        };
        let found = CubeBackend::amp_run(TensorVec(tensors.collect()), job);
        let found = found.0.into_iter().next().unwrap();
        let shape = shape.clone();
        assert_eq!((found.dtype(), found.shape()), (DType::from(dtype), shape));
        assert_products(&expected, &values(found), pair, factor);
    };
    check(factor, None);
    // The same in a tensor, of which half is a number.
    let half = (factor / 0.5) as f32;
    if half.is_normal() {
        let scale = CubeBackend::float_from_data([half].into(), &gradient.device());
        check(0.5, Some(scale));
    }
    // Nobody has written it.
    let bits = |values: &[f32]| Vec::from_iter(values.iter().map(|value| value.to_bits()));
    assert!(bits(&values(gradient)) == bits(&expected));
}

#[test]
fn every_pair() {
    let Some(device) = device() else { return };
    for (from, to) in pairs() {
        let check = |gradients: &[f32], factor| {
            let gradients = data(gradients, [gradients.len()], to);
            let gradients = CubeBackend::float_from_data(gradients, &device);
            check(gradients, (from, to), factor);
        };
        let all = every_value(to);
        for factor in FACTORS {
            check(&all, factor);
        }
        // Vectors of one, of two, of four values; several for each unit.
        for length in [1, 2, 4, 7, 1022, 1024, 1 << 17] {
            let numbers: Vec<f32> = (0..length).map(|i| (i % 241) as f32 - 120.0).collect();
            check(&numbers, 0.3);
        }
    }
}

#[test]
fn layouts() {
    let Some(device) = device() else { return };
    let numbers: Vec<f32> = (0..54 * 38).map(|i| (i % 241) as f32 - 120.0).collect();
    for (from, to) in pairs() {
        let plane = || CubeBackend::float_from_data(data(&numbers, [54, 38], to), &device);
        let part = || {
            let slices = [Slice::from(3..50), Slice::from(4..33)];
            CubeBackend::float_slice(plane(), &slices)
        };
        let row = || CubeBackend::float_slice(plane(), &[Slice::from(5..6), Slice::from(0..38)]);
        for gradient in [
            CubeBackend::float_transpose(plane()),
            part(),
            CubeBackend::float_transpose(part()),
            CubeBackend::float_expand(row(), [9, 38].into()),
            CubeBackend::float_flip(plane(), &[1]),
        ] {
            check(gradient, (from, to), 0.3);
        }
    }
}

//! The kernel of CubeCL's backend, which Fusion does without.

use burn::backend::{DispatchDevice, TensorMetadata};
use burn::{backend::ops::FloatTensorOps, backend::tensor::Device as DeviceOf, tensor::Device};
use burn_amp_kernels::{AmpOps, Elementwise, Job, TensorVec};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use crate::skipped::skipped;
use crate::tensors::{FACTORS, Pair, assert_products, data, every_value};
use crate::{device::pairs, number::widen};

fn device() -> Option<DeviceOf<CubeBackend>> {
    match Device::default().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

fn values(tensor: CubeTensor) -> Vec<f64> {
    let data = burn_std::reader::try_read_sync(CubeBackend::float_into_data(tensor));
    widen(&data.unwrap().unwrap())
}

fn check(gradient: CubeTensor, pair: Pair, whole: f64) {
    let dtype = pair.0.into();
    let expected = values(gradient.clone());
    // The same in a tensor, of which half is a number.
    let half = Some((whole / 0.5) as f32).filter(|half| half.is_normal());
    let half = half.map(|half| CubeBackend::float_from_data([half].into(), &gradient.device()));
    let halved = half.map(|scale| (0.5, Some(scale)));
    for (factor, scale) in [(whole, None)].into_iter().chain(halved) {
        let tensors = [gradient.clone()].into_iter().chain(scale).collect();
        let job = Job::Elementwise(Elementwise::MulCast { dtype, factor });
        let found = CubeBackend::amp_run(TensorVec(tensors), job).0.remove(0);
        let kind = (found.dtype(), found.shape());
        assert_eq!(kind, (pair.0, gradient.shape()));
        assert_products(&expected, &values(found), pair, whole);
    }
    // Nobody has written it.
    let bits = |values: &[f64]| Vec::from_iter(values.iter().map(|value| value.to_bits()));
    assert!(bits(&values(gradient)) == bits(&expected));
}

#[test]
fn every_pair() {
    let Some(device) = device() else {
        return skipped("not a device of CubeCL's");
    };
    for (from, to) in pairs() {
        let check = |gradients: &[f64], factor| {
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
            let numbers: Vec<f64> = (0..length).map(|i| (i % 241) as f64 - 120.0).collect();
            check(&numbers, 0.3);
        }
    }
}

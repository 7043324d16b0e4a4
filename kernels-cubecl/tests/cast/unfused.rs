//! The kernel of CubeCL's backend, which Fusion does without.

use burn::backend::{DispatchDevice, TensorMetadata, ops::FloatTensorOps};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::*;

fn read(tensor: CubeTensor) -> Vec<f64> {
    let data = burn_std::reader::try_read_sync(CubeBackend::float_into_data(tensor));
    widen(&data.unwrap().unwrap())
}

/// Multiplies gradients in vectors of one, of two, of four values, and several of them for each unit; nothing on devices that are not CubeCL's.
pub fn check(gradients: &[f64], pair: Pair, whole: f64) {
    let device = Device::default();
    let DispatchDevice::Cube(device) = device.as_dispatch() else {
        return;
    };
    let many = gradients.repeat(3);
    for length in [1, 2, 4, 7, 1022, 1024, many.len()] {
        let gradients = &many[..length];
        let gradient = CubeBackend::float_from_data(data(gradients, [length], pair.1), device);
        // The same in a tensor, of which half is a number.
        let half = Some((whole / 0.5) as f32).filter(|half| half.is_normal());
        let half = half.map(|half| CubeBackend::float_from_data([half].into(), device));
        let halved = half.map(|scale| (0.5, Some(scale)));
        for (factor, scale) in [(whole, None)].into_iter().chain(halved) {
            let tensors = [gradient.clone()].into_iter().chain(scale).collect();
            let dtype = pair.0.into();
            let job = Job::Elementwise(Elementwise::MulCast { dtype, factor });
            let found = CubeBackend::amp_run(TensorVec(tensors), job).0.remove(0);
            assert_eq!((found.dtype(), found.shape()), (pair.0, gradient.shape()));
            assert_products(gradients, &read(found), pair, whole);
        }
        assert_same(&read(gradient), gradients, "what is held");
    }
}

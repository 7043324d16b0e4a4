//! Updates that half precision would round away add up in the f32 parameters.

use burn::{
    module::{Module, Param},
    optim::SgdConfig,
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer};

#[derive(Module, Debug)]
struct Weights {
    values: Param<Tensor<1>>,
}

#[test]
fn updates_below_the_resolution_add_up() {
    for precision in [MixedPrecision::f16(), MixedPrecision::bf16()] {
        let device = Device::flex().autodiff();
        let weights = Weights {
            values: Param::from_tensor(Tensor::ones([3], &device)),
        };
        let mut weights = weights.apply_reparameterization(precision);
        let scaler = GradScalerConfig::new()
            .with_init_scale(256.0)
            .init()
            .unwrap();
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
        // The next f16 below 1 is 1 - 2^-11; every step takes a 2^-14.
        for _ in 0..128 {
            assert_ne!(weights.values.val().dtype(), DType::F32);
            let loss = weights.values.val().cast(FloatDType::F32).sum();
            let grads = optim.backward(loss, &weights);
            weights = optim.step(2f64.powi(-14), weights, grads);
        }
        let stored = weights.values.base().to_data();
        let expected = 1.0 - 2f32.powi(-7);
        assert_eq!(stored.as_slice::<f32>().unwrap(), [expected; 3]);
        let seen: Vec<f32> = weights.values.val().to_data().iter().collect();
        assert_eq!(seen, [expected; 3]);
    }
}

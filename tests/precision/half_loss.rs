//! A loss that is itself f16: its gradient, the scale, is infinite there until the scale fits.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::SgdConfig,
    tensor::{DType, Device, Tensor},
};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer};

#[test]
fn the_scale_comes_down_to_what_f16_holds() {
    let device = Device::flex().autodiff();
    let precision = MixedPrecision::f16();
    let linear: Linear = LinearConfig::new(3, 1).init(&device);
    let mut model = linear.apply_reparameterization(precision.clone());
    let scaler = GradScalerConfig::new().with_init_scale(262144.0);
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap());

    let input = Tensor::<2>::ones([1, 3], &device);
    let mut scales = Vec::new();
    for _ in 0..5 {
        scales.push(optim.scaler().loss_scale());
        let loss = model.forward(precision.cast(input.clone())).sum();
        assert_eq!(loss.dtype(), DType::F16);
        let grads = optim.backward(loss, &model);
        model = optim.step(0.01, model, grads);
    }
    // 32768 is the largest power of two that f16 holds.
    assert_eq!(scales, [262144.0, 131072.0, 65536.0, 32768.0, 32768.0]);
    assert_eq!(optim.scaler().counters().skipped(), 3);
    assert_eq!(optim.scaler().last_status().unwrap().max_abs(), 1.0);
}

//! Gradients that f16 cannot hold: gone without scaling, all there with it.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, FloatDType, Tensor, activation::sigmoid},
};
use burn_amp::{GradScalerConfig, MixedPrecision, inspect};

use crate::support::{filled, input};

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(8, 16).init(device),
            second: LinearConfig::new(16, 4).init(device),
        }
    }

    /// A loss whose gradient with respect to each output is 2.5e-9: f16 ends at 6e-8.
    fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        let hidden = sigmoid(self.first.forward(input));
        let output = self.second.forward(hidden).cast(FloatDType::F32);
        output.sum() * 2.5e-9
    }
}

#[test]
fn all_zero_without_scaling_and_none_with_it() {
    let device = Device::flex().autodiff();
    let precision = MixedPrecision::f16();
    let plain = filled(Mlp::new(&device));
    let model = plain.clone().apply_reparameterization(precision.clone());
    let input = input([16, 8]);
    let loss = || model.loss(precision.cast(input.clone()));

    let unscaled = GradientsParams::from_grads(loss().backward(), &model);
    let unscaled = inspect(&unscaled, &model);
    assert_eq!(unscaled.gradients(), 4);
    assert_eq!(unscaled.zero_share(), 1.0);

    let scaler = GradScalerConfig::new().init().unwrap();
    assert_eq!(scaler.loss_scale(), 65536.0);
    let scaled = scaler.unscale(scaler.backward(loss(), &model), &model);
    assert!(!scaled.has_overflow());
    assert_eq!(scaled.status().elements(), unscaled.elements());
    assert_eq!(scaled.status().zeros(), 0);

    // And they are what f32 finds, but for the rounding to f16.
    let reference = plain.loss(input.clone()).backward();
    let reference = GradientsParams::from_grads(reference, &plain);
    let id = plain.first.weight.id;
    let expected = reference.get::<2>(id).unwrap();
    let actual = scaled.get::<2>(id).unwrap();
    let largest: f32 = expected.clone().abs().max().into_scalar();
    let error: f32 = (actual - expected).abs().max().into_scalar();
    assert!(error < 2e-2 * largest, "off by {error} of {largest}");
}

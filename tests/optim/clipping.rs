//! Clipping that is configured on the inner optimizer sees unscaled gradients.

use burn::{
    grad_clipping::{GradientClipping, GradientClippingConfig},
    module::{Module, Param, ParamGroup},
    optim::{ModuleOptimizer, SgdConfig},
    tensor::{Device, Tensor},
};
use burn_amp::{GradScalerConfig, ScaledOptimizer};

#[derive(Module, Debug)]
struct Weights {
    values: Param<Tensor<1>>,
}

/// The gradient of the loss below; its norm is 5.
const GRADIENT: [f32; 3] = [3.0, -4.0, 0.0];

/// How far one step of gradient descent with learning rate 1 goes, against the gradient.
fn moved_by(optimizer: ModuleOptimizer) -> [f32; 3] {
    let device = Device::flex().autodiff();
    let mut weights = Weights {
        values: Param::from_tensor(Tensor::zeros([3], &device)),
    };
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = ScaledOptimizer::new(optimizer, scaler);

    let loss = (weights.values.val() * Tensor::from_floats(GRADIENT, &device)).sum();
    let grads = optim.backward(loss, &weights);
    weights = optim.step(1.0, weights, grads);

    let moved = weights.values.val().neg().to_data();
    moved.as_slice::<f32>().unwrap().try_into().unwrap()
}

fn descent(clipping: GradientClippingConfig) -> ModuleOptimizer {
    let config = SgdConfig::new().with_gradient_clipping(Some(clipping));
    config.init()
}

#[test]
fn a_norm_above_the_unscaled_one_does_not_clip() {
    // The scaled norm, 5 * 65536, is far above it.
    let moved = moved_by(descent(GradientClippingConfig::Norm(6.0)));
    assert_eq!(moved, GRADIENT);
}

#[test]
fn a_norm_below_the_unscaled_one_clips() {
    let moved = moved_by(descent(GradientClippingConfig::Norm(2.5)));
    for (moved, gradient) in moved.into_iter().zip(GRADIENT) {
        assert!((moved - gradient / 2.0).abs() < 1e-6, "{moved}");
    }
}

#[test]
fn values_are_clipped_after_unscaling() {
    let moved = moved_by(descent(GradientClippingConfig::Value(3.5)));
    assert_eq!(moved, [3.0, -3.5, 0.0]);
}

#[test]
fn the_clipping_of_a_group_sees_unscaled_gradients() {
    let grouped = |clipping| {
        ModuleOptimizer::from(SgdConfig::new().build()).with_group(
            ParamGroup::from_path("values"),
            SgdConfig::new().build(),
            Some(clipping),
        )
    };
    assert_eq!(moved_by(grouped(GradientClipping::Norm(6.0))), GRADIENT);
    let moved = moved_by(grouped(GradientClipping::Value(3.5)));
    assert_eq!(moved, [3.0, -3.5, 0.0]);
}

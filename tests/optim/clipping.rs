//! Clipping that is configured on the inner optimizer sees unscaled gradients.

use burn_amp_tests::prelude::*;

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

fn of_a_group(clipping: GradientClipping) -> ModuleOptimizer {
    let sgd = || SgdConfig::new().build();
    let values = ParamGroup::from_path("values");
    ModuleOptimizer::from(sgd()).with_group(values, sgd(), Some(clipping))
}

#[test]
fn clipping_sees_unscaled_gradients() {
    use GradientClippingConfig::{Norm, Value};
    let halved = GRADIENT.map(|value| value / 2.0);
    let limited = [3.0, -3.5, 0.0];
    for (name, optimizer, expected) in [
        // The scaled norm, 5 * 65536, is far above it.
        ("a norm above", descent(Norm(6.0)), GRADIENT),
        ("a norm below", descent(Norm(2.5)), halved),
        ("values", descent(Value(3.5)), limited),
        ("a group", of_a_group(GradientClipping::Norm(6.0)), GRADIENT),
        (
            "its values",
            of_a_group(GradientClipping::Value(3.5)),
            limited,
        ),
    ] {
        for (moved, expected) in moved_by(optimizer).into_iter().zip(expected) {
            assert!((moved - expected).abs() < 1e-6, "{name}: {moved}");
        }
    }
}

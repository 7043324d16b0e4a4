//! Half-precision parameters without masters: refused with a hint, or, where asked for, with a state that Burn
//! cannot load.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use burn_amp_tests::scaled_by_hand;

use burn_amp_tests::{pack, parameters};

use crate::support::{device, gradients};

fn half() -> Linear {
    let linear = LinearConfig::new(3, 2).init(&device());
    to_half(linear, FloatDType::F16, &[])
}

fn first(optim: &ScaledOptimizer, linear: &Linear) -> ScaledGradients {
    scaled_by_hand(optim.scaler(), gradients(linear, 0, 1.0, FloatDType::F16))
}

#[test]
fn a_wide_gradient_is_refused_and_the_way_out_named() {
    let linear = half();
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler);
    let grads = first(&optim, &linear);
    let error = optim.try_step(0.1, linear, grads).unwrap_err().error;
    assert!(matches!(error, AmpError::HalfPrecisionParameter { .. }));
    says(&error, ["`weight`", "MasterWeights", "MixedPrecision"]);
}

/// Burn builds the state of Adam in the device's default dtype, f32: the next step would panic.
#[test]
fn the_half_precision_state_of_adam_cannot_be_resumed() {
    let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let build = || ScaledOptimizer::new(AdamConfig::new().init(), scaler.init().unwrap());
    let (mut optim, linear) = (build(), half());
    let grads = first(&optim, &linear);
    let before = parameters(&linear);
    let linear = optim.step(0.1, linear, grads);
    assert_ne!(parameters(&linear), before);

    // It is not even saved.
    let error = optim.into_bytes().unwrap_err();
    assert!(matches!(error, AmpError::RecordIo { .. }), "{error}");
    assert!(error.to_string().contains("f16"), "{error}");
    let mut resumed = build();
    let untouched = pack(resumed.into_bytes().unwrap());
    let plain = optim.optimizer().into_bytes().unwrap();
    let error = resumed.from_bytes(plain).unwrap_err();
    assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
    says(&error, ["moment", "f16", "f32", "default float dtype"]);
    assert_eq!(pack(resumed.into_bytes().unwrap()), untouched);
}

/// Without state tensors there is nothing to convert.
#[test]
fn bare_sgd_can_be_resumed() {
    let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let build = || ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap());
    let (mut optim, linear) = (build(), half());
    let grads = first(&optim, &linear);
    optim.step(0.1, linear, grads);
    let mut resumed = build();
    resumed.from_bytes(optim.into_bytes().unwrap()).unwrap();
    let [found, expected] =
        [&mut resumed, &mut optim].map(|optim| pack(optim.into_bytes().unwrap()));
    assert_eq!(found, expected);
}

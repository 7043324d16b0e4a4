//! Half-precision parameters without masters: refused with a hint, or, where asked for, with a state that Burn
//! cannot load.

use burn::{
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, SgdConfig},
    tensor::FloatDType,
};
use burn_amp::{AmpError, GradScalerConfig, ScaledOptimizer, to_half};
use burn_amp_tests::scaled_by_hand;

use crate::{
    bits::{pack, parameters},
    support::{device, gradients},
};

fn half() -> Linear {
    to_half(
        LinearConfig::new(3, 2).init(&device()),
        FloatDType::F16,
        &[],
    )
}

#[test]
fn a_wide_gradient_is_refused_and_the_way_out_named() {
    let linear = half();
    let mut optim = ScaledOptimizer::new(
        AdamConfig::new().init(),
        GradScalerConfig::new().init().unwrap(),
    );
    let grads = scaled_by_hand(optim.scaler(), gradients(&linear, 0, 1.0, FloatDType::F16));
    let error = optim.try_step(0.1, linear, grads).unwrap_err().error;
    assert!(
        matches!(error, AmpError::HalfPrecisionParameter { .. }),
        "{error}"
    );
    for way in ["`weight`", "MasterWeights", "MixedPrecision"] {
        assert!(error.to_string().contains(way), "{error}");
    }
}

/// Burn builds the state of Adam in the device's default dtype, f32: the next step would panic.
#[test]
fn the_half_precision_state_of_adam_cannot_be_resumed() {
    let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let build = || ScaledOptimizer::new(AdamConfig::new().init(), scaler.init().unwrap());
    let (mut optim, linear) = (build(), half());
    let grads = scaled_by_hand(optim.scaler(), gradients(&linear, 0, 1.0, FloatDType::F16));
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
    for part in ["moment", "f16", "f32", "default float dtype"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(pack(resumed.into_bytes().unwrap()), untouched);
}

/// Without state tensors there is nothing to convert.
#[test]
fn bare_sgd_can_be_resumed() {
    let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let build = || ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap());
    let (mut optim, linear) = (build(), half());
    let grads = scaled_by_hand(optim.scaler(), gradients(&linear, 0, 1.0, FloatDType::F16));
    optim.step(0.1, linear, grads);
    let mut resumed = build();
    resumed.from_bytes(optim.into_bytes().unwrap()).unwrap();
    assert_eq!(
        pack(resumed.into_bytes().unwrap()),
        pack(optim.into_bytes().unwrap())
    );
}

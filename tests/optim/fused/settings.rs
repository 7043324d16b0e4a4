//! Settings with which Burn would train to NaN are refused, by name; those at the ends of their ranges are taken.

use burn::{
    grad_clipping::GradientClippingConfig,
    module::ParamGroup,
    optim::{
        AdamConfig, AdamWConfig, SgdConfig, decay::WeightDecayConfig, momentum::MomentumConfig,
    },
};
use burn_amp::{AmpError, FusedAdam, FusedAdamW, FusedSgd};

fn refused<T: std::fmt::Debug>(result: Result<T, AmpError>, message: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, AmpError::InvalidValue { .. }), "{error:?}");
    assert_eq!(error.to_string(), message);
}

#[test]
fn of_adam() {
    let adam = |config: AdamConfig| FusedAdam::new(config);
    let new = AdamConfig::new;
    let betas = "must be at least 0 and below 1";
    refused(
        adam(new().with_beta_1(1.0)),
        &format!("`beta_1` is 1, but {betas}"),
    );
    refused(
        adam(new().with_beta_2(-0.5)),
        &format!("`beta_2` is -0.5, but {betas}"),
    );
    let finite = "is infinite or NaN, but must be a finite number";
    refused(
        adam(new().with_beta_1(f32::NAN)),
        &format!("`beta_1` {finite}"),
    );
    refused(
        adam(new().with_epsilon(f32::INFINITY)),
        &format!("`epsilon` {finite}"),
    );
    refused(
        adam(new().with_epsilon(-0.25)),
        "`epsilon` is -0.25, but must be at least 0",
    );
    let decay = |penalty| new().with_weight_decay(Some(WeightDecayConfig::new(penalty)));
    refused(adam(decay(f32::NAN)), &format!("`penalty` {finite}"));
    refused(adam(decay(-1.0)), "`penalty` is -1, but must be at least 0");
    let clip = |clip| new().with_grad_clipping(Some(clip));
    let message = "`grad_clipping` is 0, but must be a threshold above 0";
    refused(adam(clip(GradientClippingConfig::Norm(0.0))), message);
    refused(
        adam(clip(GradientClippingConfig::Value(f32::NAN))),
        &format!("`Value` {finite}"),
    );
    adam(new().with_beta_1(0.0).with_beta_2(0.0).with_epsilon(0.0)).unwrap();
    adam(decay(0.0)).unwrap();
}

#[test]
fn of_adam_w() {
    let new = AdamWConfig::new;
    let message = "`weight_decay` is -0.5, but must be at least 0";
    refused(FusedAdamW::new(new().with_weight_decay(-0.5)), message);
    let fused = FusedAdamW::new(new()).unwrap();
    let group = fused.with_group(ParamGroup::all(), new().with_beta_2(2.0));
    refused(group, "`beta_2` is 2, but must be at least 0 and below 1");
}

#[test]
fn of_sgd() {
    let sgd = |momentum| FusedSgd::new(SgdConfig::new().with_momentum(Some(momentum)));
    let new = MomentumConfig::new;
    refused(
        sgd(new().with_momentum(-0.5)),
        "`momentum` is -0.5, but must be at least 0",
    );
    let finite = "is infinite or NaN, but must be a finite number";
    refused(
        sgd(new().with_dampening(f64::NAN)),
        &format!("`dampening` {finite}"),
    );
    // What grows without bound is the user's own.
    sgd(new().with_momentum(1.0).with_dampening(0.0)).unwrap();
}

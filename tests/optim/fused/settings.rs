//! Settings with which Burn would train to NaN are refused, by name; those at the ends of their ranges are taken.

use burn_amp_tests::prelude::*;

const BETA: &str = "must be at least 0 and below 1";
const FINITE: &str = "is infinite or NaN, but must be a finite number";

fn adam(config: AdamConfig) -> Option<AmpError> {
    FusedAdam::new(config).err()
}

fn momentum(momentum: MomentumConfig) -> Option<AmpError> {
    FusedSgd::new(SgdConfig::new().with_momentum(Some(momentum))).err()
}

#[test]
fn each_mistake_is_named() {
    let new = AdamConfig::new;
    let decay = |penalty| new().with_weight_decay(Some(WeightDecayConfig::new(penalty)));
    let clip = |clip| new().with_grad_clipping(Some(clip));
    let (norm, value) = (GradientClippingConfig::Norm, GradientClippingConfig::Value);
    let w = AdamWConfig::new;
    let group = FusedAdamW::new(w()).unwrap();
    let group = group.with_group(ParamGroup::all(), w().with_beta_2(2.0));
    let of_momentum = MomentumConfig::new;
    for (error, message) in [
        (
            adam(new().with_beta_1(1.0)),
            format!("`beta_1` is 1, but {BETA}"),
        ),
        (
            adam(new().with_beta_2(-0.5)),
            format!("`beta_2` is -0.5, but {BETA}"),
        ),
        (
            adam(new().with_beta_1(f32::NAN)),
            format!("`beta_1` {FINITE}"),
        ),
        (
            adam(new().with_epsilon(f32::INFINITY)),
            format!("`epsilon` {FINITE}"),
        ),
        (
            adam(new().with_epsilon(-0.25)),
            "`epsilon` is -0.25, but must be at least 0".to_string(),
        ),
        (adam(decay(f32::NAN)), format!("`penalty` {FINITE}")),
        (
            adam(decay(-1.0)),
            "`penalty` is -1, but must be at least 0".to_string(),
        ),
        (
            adam(clip(norm(0.0))),
            "`grad_clipping` is 0, but must be a threshold above 0".to_string(),
        ),
        (adam(clip(value(f32::NAN))), format!("`Value` {FINITE}")),
        (
            FusedAdamW::new(w().with_weight_decay(-0.5)).err(),
            "`weight_decay` is -0.5, but must be at least 0".to_string(),
        ),
        (group.err(), format!("`beta_2` is 2, but {BETA}")),
        (
            momentum(of_momentum().with_momentum(-0.5)),
            "`momentum` is -0.5, but must be at least 0".to_string(),
        ),
        (
            momentum(of_momentum().with_dampening(f64::NAN)),
            format!("`dampening` {FINITE}"),
        ),
    ] {
        let error = error.expect(&message);
        assert!(matches!(error, AmpError::InvalidValue { .. }), "{error:?}");
        assert_eq!(error.to_string(), message);
    }
    let zeros = new().with_beta_1(0.0).with_beta_2(0.0).with_epsilon(0.0);
    assert_eq!(adam(zeros), None);
    assert_eq!(adam(decay(0.0)), None);
    // What grows without bound is the user's own.
    assert_eq!(
        momentum(of_momentum().with_momentum(1.0).with_dampening(0.0)),
        None
    );
}

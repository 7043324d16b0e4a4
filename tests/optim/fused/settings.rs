//! Settings with which Burn would train to NaN are refused, by name; those at the ends of their ranges are taken.

use burn_amp_tests::prelude::*;

const BETA: &str = "must be at least 0 and below 1";
const NEGATIVE: &str = "must be at least 0";
const NO_NUMBER: (&str, &str) = ("infinite or NaN", "must be a finite number");

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
    let adam_w = |config| FusedAdamW::new(config).err();
    for (error, field, (value, rule)) in [
        (adam(new().with_beta_1(1.0)), "beta_1", ("1", BETA)),
        (adam(new().with_beta_2(-0.5)), "beta_2", ("-0.5", BETA)),
        (adam(new().with_beta_1(f32::NAN)), "beta_1", NO_NUMBER),
        (
            adam(new().with_epsilon(f32::INFINITY)),
            "epsilon",
            NO_NUMBER,
        ),
        (
            adam(new().with_epsilon(-0.25)),
            "epsilon",
            ("-0.25", NEGATIVE),
        ),
        (adam(decay(f32::NAN)), "penalty", NO_NUMBER),
        (adam(decay(-1.0)), "penalty", ("-1", NEGATIVE)),
        (
            adam(clip(norm(0.0))),
            "grad_clipping",
            ("0", "must be a threshold above 0"),
        ),
        (adam(clip(value(f32::NAN))), "Value", NO_NUMBER),
        (
            adam_w(w().with_weight_decay(-0.5)),
            "weight_decay",
            ("-0.5", NEGATIVE),
        ),
        (group.err(), "beta_2", ("2", BETA)),
        (
            momentum(of_momentum().with_momentum(-0.5)),
            "momentum",
            ("-0.5", NEGATIVE),
        ),
        (
            momentum(of_momentum().with_dampening(f64::NAN)),
            "dampening",
            NO_NUMBER,
        ),
    ] {
        let message = format!("`{field}` is {value}, but {rule}");
        let error = error.expect(&message);
        assert!(matches!(error, AmpError::InvalidValue { .. }), "{error:?}");
        assert_eq!(error.to_string(), message);
    }
    let zeros = new().with_beta_1(0.0).with_beta_2(0.0).with_epsilon(0.0);
    assert_eq!(adam(zeros), None);
    assert_eq!(adam(decay(0.0)), None);
    // What grows without bound is the user's own.
    let unbound = of_momentum().with_momentum(1.0).with_dampening(0.0);
    assert_eq!(momentum(unbound), None);
}

//! Settings with which Burn would train to NaN are refused, by name; those at the ends of their ranges are taken.

use crate::support::*;

const BETA: &str = "must be at least 0 and below 1";
const NEGATIVE: &str = "must be at least 0";
const THRESHOLD: &str = "must be a threshold above 0";
const NO_NUMBER: (&str, &str) = ("infinite or NaN", "must be a finite number");

/// Why the first step is refused, and so is everything else that would use the optimizer.
fn refusal<C: Clone>(fused: Fused<C>) -> Option<AmpError> {
    let net = LinearConfig::new(2, 2).init(&Device::default());
    let mut optim = ScaledOptimizer::new(fused.clone(), &MixedPrecision::f32());
    let step = optim.try_step(0.1, net.clone(), GradientsParams::new());
    let error = step.err().map(|failed| failed.error);
    assert_eq!(fused.clone().into_inner().err(), error);
    assert_eq!(ModuleOptim::to_record(&fused).err(), error);
    if let Some(error) = &error {
        let record = ScaledOptimizer::from(AdamConfig::new().init()).to_record();
        assert_eq!(optim.load_record(record).err().as_ref(), Some(error));
        let message = panic_message(|| fused.clone().step(0.1, net, GradientsParams::new()));
        assert_eq!(message, error.to_string());
    }
    error
}

fn adam(config: AdamConfig) -> Option<AmpError> {
    refusal(FusedAdam::new(config))
}

fn momentum(momentum: MomentumConfig) -> Option<AmpError> {
    let config = SgdConfig::new().with_momentum(Some(momentum));
    refusal(FusedSgd::new(config))
}

/// A setting of this name has this value, which breaks this rule.
fn check(error: Option<AmpError>, field: &str, (value, rule): (&str, &str)) {
    let message = format!("`{field}` is {value}, but {rule}");
    let error = error.expect(&message);
    assert!(matches!(error, AmpError::InvalidValue { .. }), "{error:?}");
    assert_eq!(error.to_string(), message);
}

#[test]
fn each_mistake_is_named() {
    let new = AdamConfig::new;
    let decay = |penalty| new().with_weight_decay(Some(WeightDecayConfig::new(penalty)));
    let clip = |clip| new().with_grad_clipping(Some(clip));
    let (norm, value) = (GradientClippingConfig::Norm, GradientClippingConfig::Value);
    for (config, field, mistake) in [
        (new().with_beta_1(1.0), "beta_1", ("1", BETA)),
        (new().with_beta_2(-0.5), "beta_2", ("-0.5", BETA)),
        (new().with_beta_1(f32::NAN), "beta_1", NO_NUMBER),
        (new().with_epsilon(f32::INFINITY), "epsilon", NO_NUMBER),
        (new().with_epsilon(-0.25), "epsilon", ("-0.25", NEGATIVE)),
        (decay(f32::NAN), "penalty", NO_NUMBER),
        (decay(-1.0), "penalty", ("-1", NEGATIVE)),
        (clip(norm(0.0)), "grad_clipping", ("0", THRESHOLD)),
        (clip(value(f32::NAN)), "Value", NO_NUMBER),
    ] {
        check(adam(config), field, mistake);
    }
    let back = momentum(MomentumConfig::new().with_momentum(-0.5));
    check(back, "momentum", ("-0.5", NEGATIVE));
    let nan = momentum(MomentumConfig::new().with_dampening(f64::NAN));
    check(nan, "dampening", NO_NUMBER);
    let new = AdamWConfig::new;
    let decayed = FusedAdamW::new(new().with_weight_decay(-0.5));
    check(refusal(decayed), "weight_decay", ("-0.5", NEGATIVE));
    let group = FusedAdamW::new(new());
    let group = group.with_group(ParamGroup::all(), new().with_beta_2(2.0));
    check(refusal(group.clone()), "beta_2", ("2", BETA));
    // The first counts.
    let group = group.with_group(ParamGroup::all(), new().with_beta_1(2.0));
    check(refusal(group), "beta_2", ("2", BETA));

    let new = AdamConfig::new;
    let zeros = new().with_beta_1(0.0).with_beta_2(0.0).with_epsilon(0.0);
    assert_eq!((adam(zeros), adam(decay(0.0))), (None, None));
    // What grows without bound is the user's own.
    let unbound = MomentumConfig::new().with_momentum(1.0);
    assert_eq!(momentum(unbound.with_dampening(0.0)), None);
}

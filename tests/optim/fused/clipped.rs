//! Clipping beside a fused optimizer: without a wait, and to the same bits with one.

use burn::{
    grad_clipping::GradientClippingConfig,
    module::ParamGroup,
    optim::{
        AdamConfig, AdamWConfig, SgdConfig, decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::{Device, FloatDType},
};
use burn_amp::{
    FusedAdam, FusedAdamW, FusedSgd, GradientClip, ModuleOptim, ScaledOptimizer, StepOutcome,
};

use super::unheard::{Net, Run, Waited, config, event, is_flex};

type Rules<'a> = &'a [(Option<&'a str>, GradientClip)];

fn clipped<O: ModuleOptim>(mut run: Run<O>, rules: Rules) -> Run<O> {
    for (group, clip) in rules {
        let clip_with = |optim: ScaledOptimizer<O>| match group {
            None => optim.with_clipping(*clip),
            Some(name) => optim.with_group_clipping(ParamGroup::from_predicate(*name), *clip),
        };
        run.optim = clip_with(run.optim).unwrap();
    }
    run
}

/// In steps by backward passes, some of which overflow, and then in steps with gradients in `dtype`.
fn assert_same<A: ModuleOptim>(
    adam: impl Fn() -> A,
    rules: Rules,
    dtype: FloatDType,
    steps: usize,
) {
    let net = Net::new(&Device::default().autodiff());
    let mut unheard = clipped(Run::of(&net, adam(), config()), rules);
    let mut waited = clipped(Run::of(&net, Waited(adam()), config()), rules);
    let mut changed = 0;
    for step in 0..steps {
        if step < steps / 2 {
            unheard.step(step, event(step)).unwrap();
            waited.step(step, event(step)).unwrap();
        } else {
            unheard.step_in(dtype, step, step % 13 == 5);
            waited.step_in(dtype, step, step % 13 == 5);
        }
        if step % 10 == 0 {
            assert_eq!(unheard.values(), waited.values(), "step {step}");
            unheard.optim.synchronize();
            let [one, other] = [unheard.optim.scaler(), waited.optim.scaler()];
            assert_eq!(one.last_status(), other.last_status(), "step {step}");
            let status = one.last_status().unwrap();
            assert_eq!(
                status.clipped().is_some(),
                one.last_outcome() == Some(StepOutcome::Stepped)
            );
            changed += status.clipped().unwrap_or(0);
        }
    }
    unheard.optim.synchronize();
    assert_eq!(unheard.values(), waited.values());
    let [one, other] = [unheard.optim.scaler(), waited.optim.scaler()];
    assert_eq!(one.counters(), other.counters());
    assert!(one.counters().skipped() > 0 && changed > 0);
    let bytes = unheard.optim.into_bytes().unwrap();
    assert!(bytes == waited.optim.into_bytes().unwrap());
}

fn adam() -> FusedAdam {
    let penalty = Some(WeightDecayConfig::new(0.01));
    FusedAdam::new(AdamConfig::new().with_weight_decay(penalty)).unwrap()
}

#[test]
fn the_same_bits_by_global_norm() {
    let steps = if is_flex() { 2000 } else { 40 };
    let rules = [(None, GradientClip::GlobalNorm(0.05))];
    assert_same(adam, &rules, FloatDType::F32, steps);
}

/// Of two global norms, each norm and each value.
#[test]
fn the_same_bits_by_every_rule() {
    let steps = if is_flex() { 400 } else { 30 };
    let momentum = MomentumConfig::new().with_nesterov(true);
    let sgd = || FusedSgd::new(SgdConfig::new().with_momentum(Some(momentum.clone()))).unwrap();
    let groups = [
        (None, GradientClip::GlobalNorm(0.02)),
        (Some("output"), GradientClip::GlobalNorm(0.05)),
        (Some("hidden.bias"), GradientClip::Norm(0.001)),
    ];
    assert_same(sgd, &groups, FloatDType::F16, steps);
    let values = [
        (None, GradientClip::Norm(0.03)),
        (Some("bias"), GradientClip::Value(0.004)),
        (
            Some("output.weight"),
            GradientClip::GlobalNorm(f64::INFINITY),
        ),
    ];
    assert_same(adam, &values, FloatDType::F32, steps);
    let all = [(None, GradientClip::Value(0.004))];
    assert_same(sgd, &all, FloatDType::F32, steps);
}

/// Two groups of parameters are two calls of the kernel; the norm is of both.
#[test]
fn the_same_bits_with_groups_of_parameters() {
    let steps = if is_flex() { 300 } else { 30 };
    let adam_w = || {
        let config = AdamWConfig::new().with_weight_decay(0.1);
        let biases = config.clone().with_amsgrad(true);
        let optim = FusedAdamW::new(config).unwrap();
        (optim.with_group(ParamGroup::from_predicate("bias"), biases)).unwrap()
    };
    let rules = [(None, GradientClip::GlobalNorm(0.05))];
    assert_same(adam_w, &rules, FloatDType::F32, steps);
}

/// Its own clipping comes after that of the `ScaledOptimizer`, which waits for it.
#[test]
fn beside_the_optimizers_own_clipping() {
    let adam = || {
        let own = Some(GradientClippingConfig::Norm(0.01));
        FusedAdam::new(AdamConfig::new().with_grad_clipping(own)).unwrap()
    };
    let rules = [(None, GradientClip::GlobalNorm(0.05))];
    assert_same(adam, &rules, FloatDType::F32, 60);
}

/// The steps under way were clipped by the rules of before.
#[test]
fn rules_may_be_added_in_a_run() {
    let net = Net::new(&Device::default().autodiff());
    let mut unheard = Run::of(&net, adam(), config());
    let mut waited = Run::of(&net, Waited(adam()), config());
    for threshold in [1.0, 0.01, 0.003] {
        let rules = [(None, GradientClip::GlobalNorm(threshold))];
        unheard = clipped(unheard, &rules);
        waited = clipped(waited, &rules);
        for step in 0..20 {
            unheard.step(step, event(step)).unwrap();
            waited.step(step, event(step)).unwrap();
        }
    }
    assert_eq!(unheard.values(), waited.values());
    unheard.optim.synchronize();
    let status = unheard.optim.scaler().last_status();
    assert_eq!(status, waited.optim.scaler().last_status());
}

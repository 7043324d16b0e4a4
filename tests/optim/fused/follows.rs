//! Every configuration gives what Burn's optimizer gives, and `MasterWeights` of parameters in half precision: bit for bit, on Flex. How close devices come is with the kernels.
//! Records are Burn's, in both directions, and in the middle of a run.

use super::{by_hand, gradients, same_steps};
use crate::support::*;

/// The other with the record of one, each with a scaler around it.
fn handed_over<A: ModuleOptim + Clone, B: ModuleOptim>(from: &A, to: B) -> B {
    let mut from = ScaledOptimizer::new(from.clone(), scaler());
    let mut to = ScaledOptimizer::new(to, scaler());
    to.from_bytes(from.into_bytes().unwrap()).unwrap();
    let to = to.into_inner();
    // A record that was loaded and not used yet is saved as it was.
    assert_eq!(state(&to), state(from.optimizer()));
    to
}

/// Ten times a few steps beside the other. Between them the module may change, and each goes on from the other's record, or from its own.
fn follows<M: Module, A: ModuleOptim + Clone, C: Clone>(
    (burns, fused): (A, Fused<C>),
    (mut net, steps): (M, usize),
    grads: impl Fn(&M, usize) -> GradientsParams,
    change: impl Fn(M, usize) -> M,
) {
    let (mut one, mut other) = (burns.clone(), fused.clone());
    for round in 0..10 {
        let before = parameters(&net);
        let (from, lr) = (steps * round, 0.02 / (1 + round) as f64);
        let range = from..from + steps;
        net = same_steps((&mut one, &mut other), lr, &net, range, &grads);
        assert!(parameters(&net) != before, "{from}");
        (one, other) = match round % 2 {
            0 => (
                handed_over(&other, burns.clone()),
                handed_over(&one, fused.clone()),
            ),
            _ => (one, handed_over(&other, fused.clone())),
        };
        net = change(net, round);
    }
}

fn sgd() -> SgdConfig {
    SgdConfig::new()
}

fn momentum(nesterov: bool) -> Option<MomentumConfig> {
    let momentum = MomentumConfig::new().with_dampening(0.3);
    Some(momentum.with_nesterov(nesterov))
}

fn decay() -> Option<WeightDecayConfig> {
    Some(WeightDecayConfig::new(0.01))
}

fn norm() -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Norm(0.01))
}

fn value() -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Value(0.002))
}

macro_rules! every_configuration {
    ($($name:ident: $fused:ident, $config:expr;)+) => {
        $(#[test]
        fn $name() {
            let config = $config;
            let (burns, fused) = (config.init(), $fused::new(config));
            follows((burns, fused), (Net::matrices(&flex()), 50), of_batch, |net, _| net);
        })+
    };
}

every_configuration! {
    plain_sgd: FusedSgd, sgd();
    decayed_sgd: FusedSgd, sgd().with_weight_decay(decay());
    sgd_with_momentum: FusedSgd, sgd().with_momentum(momentum(false));
    sgd_with_all: FusedSgd, sgd().with_momentum(momentum(true)).with_weight_decay(decay()).with_gradient_clipping(norm());
    plain_adam: FusedAdam, AdamConfig::new();
    decayed_adam: FusedAdam, AdamConfig::new().with_weight_decay(decay()).with_beta_1(0.8).with_epsilon(1e-8);
    amsgrad: FusedAdam, AdamConfig::new().with_amsgrad(true).with_grad_clipping(value());
    clipped_adam: FusedAdam, AdamConfig::new().with_grad_clipping(norm());
    plain_adam_w: FusedAdamW, AdamWConfig::new().with_weight_decay(0.1);
    adam_w_without_decay: FusedAdamW, AdamWConfig::new().with_weight_decay(0.0);
    cautious_adam_w: FusedAdamW, AdamWConfig::new().with_weight_decay(0.1).with_cautious_weight_decay(true);
    cautious_adam_w_without_decay: FusedAdamW, AdamWConfig::new().with_weight_decay(0.0).with_cautious_weight_decay(true);
    adam_w_amsgrad: FusedAdamW, AdamWConfig::new().with_amsgrad(true).with_beta_2(0.9).with_grad_clipping(norm());
}

/// Gradients come in f32 and in half precision by turns. A parameter is edited, and all go over to f32 and back, which the state survives.
fn follows_in_half<C: Clone>(plain: impl Optimizer, fused: Fused<C>) {
    let (f16, bf16) = (FloatDType::F16, FloatDType::BF16);
    // All parameters in half precision, some, or none.
    for (dtype, keep) in [
        (f16, "nothing"),
        (bf16, "nothing"),
        (f16, "hidden"),
        (bf16, ""),
    ] {
        let keep = [ParamGroup::from_predicate(keep)];
        let net = to_half(Net::full(&flex()), dtype, &keep);
        let grads = |net: &Net, step: usize| match step % 3 {
            1 => gradients(net, step, dtype),
            _ => by_hand(net, step),
        };
        let change = |mut net: Net, round: usize| match round {
            2 => {
                let edit = |weight: Tensor<2>| weight.inner().mul_scalar(1.5);
                let edit = |weight| Tensor::from_inner(edit(weight)).require_grad();
                net.hidden.weight = net.hidden.weight.map(edit);
                net
            }
            4 => to_full(net),
            6 => to_half(net, dtype, &[]),
            _ => net,
        };
        let optims = (MasterWeights::new(plain.clone()), fused.clone());
        follows(optims, (net, 1), grads, change);
    }
}

#[test]
fn parameters_in_half_precision() {
    for flag in [false, true] {
        let config = AdamConfig::new().with_amsgrad(flag);
        let config = config.with_weight_decay(decay());
        follows_in_half(config.build(), FusedAdam::new(config));
        let config = AdamWConfig::new().with_weight_decay(0.1);
        let config = config.with_cautious_weight_decay(flag);
        follows_in_half(config.build(), FusedAdamW::new(config));
        let config = sgd().with_momentum(momentum(true).filter(|_| flag));
        follows_in_half(config.build(), FusedSgd::new(config));
    }
}

/// Of f64 parameters there is no kernel: Burn's own operations. Nothing of their state is rounded in a record, and nothing said of
/// `Device::default()`: unlike Burn's loader.
#[test]
fn f64_parameters() {
    type Wide = (Param<Tensor<2>>, Param<Tensor<1>>);

    fn check<C: Clone>(burns: ModuleOptimizer, fresh: Fused<C>) {
        let wide = Tensor::<2>::from_data([[0.1f64, -0.2], [1e-9, 3.0]], (&flex(), DType::F64));
        let narrow = Tensor::<1>::from_data([0.5f32, -1.5], &flex());
        let wide: Wide = (Param::from_tensor(wide), Param::from_tensor(narrow));
        let grads = |wide: &Wide, _| {
            let product = wide.0.val().square().sum().cast(FloatDType::F32);
            let loss = product * wide.1.val().square().sum();
            GradientsParams::from_grads(loss.backward(), wide)
        };
        let (mut burns, mut fused) = (burns, fresh.clone());
        let stepped = same_steps((&mut burns, &mut fused), 0.01, &wide, 0..10, grads);
        let dtypes = [0, 1].map(|index| parameters(&stepped)[index].0);
        assert_eq!(dtypes, [DType::F64, DType::F32]);
        let mut loaded = handed_over(&fused, fresh);
        same_steps((&mut fused, &mut loaded), 0.01, &stepped, 10..12, grads);
    }

    let adam = AdamConfig::new().with_amsgrad(true);
    check(adam.init(), FusedAdam::new(adam));
    let adam_w = AdamWConfig::new();
    check(adam_w.init(), FusedAdamW::new(adam_w));
    for nesterov in [false, true] {
        let sgd = sgd().with_momentum(momentum(nesterov));
        let sgd = sgd.with_weight_decay(decay());
        check(sgd.init(), FusedSgd::new(sgd));
    }
}

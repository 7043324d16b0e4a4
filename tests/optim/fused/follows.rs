//! Every configuration gives what Burn's optimizer gives, and `MasterWeights` of parameters in half precision: bit for bit, on Flex. How close devices come is with the kernels.
//! Records are Burn's, in both directions, and in the middle of a run.

use super::same_steps;
use crate::support::*;

/// The other with the record of one, each with a scaler around it.
fn handed_over<A: ModuleOptim + Clone, B: ModuleOptim>(from: &A, to: B) -> B {
    let mut from = ScaledOptimizer::new(from.clone(), default_scaler());
    let mut to = ScaledOptimizer::new(to, default_scaler());
    to.from_bytes(from.into_bytes().unwrap()).unwrap();
    let to = to.into_inner();
    // A record that was loaded and not used yet is saved as it was.
    assert_eq!(state(&to), state(from.optimizer()));
    to
}

/// Ten times a few steps beside the other, on gradients in f32 and in `dtype` by turns. Between them a parameter is edited, all go over to f32 and back, which
/// the state survives, and each goes on from the other's record, or from its own.
fn follows<A: ModuleOptim + Clone, C: Clone>(
    (burns, fused): (A, Fused<C>),
    (mut net, steps): (Net, usize),
    dtype: FloatDType,
) {
    let fresh = || fused.clone();
    let (mut one, mut other) = (burns.clone(), fresh());
    for round in 0..10 {
        let before = parameters(&net);
        let (from, lr) = (steps * round, 0.02 / (1 + round) as f64);
        let grads = |net: &Net, step| match step % 3 {
            1 => gradients(net, step, 0.1, dtype),
            _ => by_hand(net, step),
        };
        let range = from..from + steps;
        net = same_steps((&mut one, &mut other), lr, &net, range, grads);
        assert!(parameters(&net) != before, "{from}");
        let [on, back] = [handed_over(&one, fresh()), handed_over(&other, fresh())];
        (one, other) = match round % 2 {
            0 => (handed_over(&other, burns.clone()), on),
            _ => (one, back),
        };
        match round {
            2 => {
                let edit = |weight: Tensor<2>| weight.inner().mul_scalar(1.5);
                let edit = |weight| Tensor::from_inner(edit(weight)).require_grad();
                net.hidden.weight = net.hidden.weight.map(edit);
            }
            4 => net = to_full(net),
            6 if dtype != FloatDType::F32 => net = to_half(net, dtype, &[]),
            _ => {}
        }
    }
}

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
        let net = to_half(Net::new(&flex()), dtype, &keep);
        let optims = (MasterWeights::new(plain.clone()), fused.clone());
        follows(optims, (net, 1), dtype);
    }
}

/// Of f64 parameters there is no kernel: Burn's own operations. Nothing of their state is rounded in a record, and nothing said of
/// `Device::default()`: unlike Burn's loader.
fn follows_in_f64<C: Clone>(mut burns: ModuleOptimizer, fresh: Fused<C>) {
    let wide = Tensor::<2>::from_data([[0.1f64, -0.2], [1e-9, 3.0]], (&flex(), DType::F64));
    let narrow = Tensor::<1>::from_data([0.5f32, -1.5], &flex());
    let wide = (Param::from_tensor(wide), Param::from_tensor(narrow));
    let grads = |wide: &(Param<Tensor<2>>, Param<Tensor<1>>), _| {
        let product = wide.0.val().square().sum().cast(FloatDType::F32);
        let loss = product * wide.1.val().square().sum();
        GradientsParams::from_grads(loss.backward(), wide)
    };
    let mut fused = fresh.clone();
    let stepped = same_steps((&mut burns, &mut fused), 0.01, &wide, 0..10, grads);
    let mut loaded = handed_over(&fused, fresh);
    same_steps((&mut fused, &mut loaded), 0.01, &stepped, 10..12, grads);
}

/// Clipping is that of f32 alone here.
macro_rules! every_configuration {
    ($($name:ident: $fused:ident, [$($config:expr),*], [$($clipped:expr),*];)+) => {
        $(#[test]
        fn $name() {
            let configs = [$($config),*];
            for config in &configs {
                follows_in_half(config.build(), $fused::new(config.clone()));
                follows_in_f64(config.init(), $fused::new(config.clone()));
            }
            for config in configs.into_iter().chain([$($clipped),*]) {
                let optims = (config.init(), $fused::new(config));
                follows(optims, (Net::new(&flex()), 20), FloatDType::F32);
            }
        })+
    };
}

every_configuration! {
    sgd: FusedSgd, [
        SgdConfig::new(),
        SgdConfig::new().with_weight_decay(decay()),
        SgdConfig::new().with_momentum(momentum(false)),
        SgdConfig::new().with_momentum(momentum(true))
    ], [
        SgdConfig::new().with_momentum(momentum(true)).with_weight_decay(decay())
            .with_gradient_clipping(norm())
    ];
    adam: FusedAdam, [
        AdamConfig::new(),
        AdamConfig::new().with_weight_decay(decay()).with_beta_1(0.8).with_epsilon(1e-8),
        AdamConfig::new().with_weight_decay(decay()).with_amsgrad(true)
    ], [
        AdamConfig::new().with_amsgrad(true)
            .with_grad_clipping(Some(GradientClippingConfig::Value(0.002))),
        AdamConfig::new().with_grad_clipping(norm())
    ];
    adam_w: FusedAdamW, [
        AdamWConfig::new().with_weight_decay(0.1),
        AdamWConfig::new().with_weight_decay(0.0),
        AdamWConfig::new().with_weight_decay(0.1).with_cautious_weight_decay(true),
        AdamWConfig::new().with_weight_decay(0.0).with_cautious_weight_decay(true)
    ], [
        AdamWConfig::new().with_amsgrad(true).with_beta_2(0.9).with_grad_clipping(norm())
    ];
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

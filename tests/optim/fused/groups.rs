//! Groups with learning rates and settings of their own; parameters that are frozen, or used twice.

use super::{by_hand, same_steps};
use crate::support::*;

fn biases() -> ParamGroup {
    ParamGroup::from_predicate("bias")
}

fn head() -> ParamGroup {
    ParamGroup::from_predicate("head")
}

fn config() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

/// The last group that matches counts: `head.bias` is stepped as the head is.
#[test]
fn groups_have_settings_and_learning_rates() {
    let plain = config().with_weight_decay(0.0);
    let slow = config().with_beta_1(0.5).with_amsgrad(true);
    let mut burns = config().init();
    burns = burns.with_group(biases(), plain.build(), None);
    burns = burns.with_group(head(), slow.build(), Some(GradientClipping::Norm(0.01)));
    let slow = slow.with_grad_clipping(Some(GradientClippingConfig::Norm(0.01)));
    let mut fused = FusedAdamW::new(config());
    fused = fused.with_group(biases(), plain);
    fused = fused.with_group(head(), slow);
    let mut scheduler = ModuleLrScheduler::new(0.01)
        .with_group(ParamGroup::from_predicate("hidden"), 0.05)
        .with_group(ParamGroup::from_path("hidden.bias"), 0.002);
    let (lr, start) = (scheduler.step(), Net::full(&flex()));
    same_steps((&mut burns, &mut fused), lr, &start, 0..50, of_batch);
    let names = state(&fused).tensors.into_keys();
    assert_eq!(names.filter(|name| name.contains("max")).count(), 2);
}

/// A group that is added later begins without state; the others keep theirs.
#[test]
fn a_new_group_begins_again() {
    let mut burns = config().init();
    let mut fused = FusedAdamW::new(config());
    let start = Net::full(&flex());
    let net = same_steps((&mut burns, &mut fused), 0.01, &start, 0..5, of_batch);
    let slow = config().with_beta_1(0.5);
    burns = burns.with_group(biases(), slow.build(), None);
    fused = fused.with_group(biases(), slow);
    assert_eq!(state(&fused), state(&burns));
    same_steps((&mut burns, &mut fused), 0.01, &net, 5..10, of_batch);
}

/// And the others keep what autodiff knows of them.
#[test]
fn frozen_parameters_stay() {
    let device = flex().gradient_checkpointing();
    let mut net = Net::full(&device);
    net.hidden = net.hidden.no_grad();
    let before = parameters(&net);
    let mut fused = FusedAdamW::new(config());
    let net = steps(&mut fused, 0.01, net, 0..3, of_batch);
    let (frozen, weight) = (net.hidden.weight.val(), net.head.weight.val());
    assert!(!frozen.is_require_grad() && weight.is_require_grad());
    let strategy = device.gradient_checkpointing_strategy();
    assert_eq!(weight.gradient_checkpointing_strategy(), strategy);
    // In the module's order: stem, hidden, head.
    let pairs = before.iter().zip(parameters(&net));
    let stays: Vec<bool> = pairs.map(|(before, after)| *before == after).collect();
    assert_eq!(stays, [false, false, true, true, false, false]);
    assert_eq!(state(&fused).tensors.len(), 2 * 4);
}

/// A parameter that stands twice is stepped as Burn steps it.
#[test]
fn tied_parameters() {
    type Tied = (Param<Tensor<2>>, Param<Tensor<1>>, Param<Tensor<2>>);

    let grads = |tied: &Tied, step: usize| {
        let (first, between, second) = tied;
        let input = Tensor::<2>::full([3, 2], step as f32 - 1.5, &flex());
        let hidden = input.matmul(first.val()) + between.val().unsqueeze();
        let loss = hidden.matmul(second.val()).square().mean();
        GradientsParams::from_grads(loss.backward(), tied)
    };
    let shared = Param::from_tensor(random(1, [2, 2], &flex()));
    let between = Param::from_tensor(random(2, [2], &flex()));
    let tied: Tied = (shared.clone(), between, shared);
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let mut burns = sgd.init();
    let mut fused = FusedSgd::new(sgd);
    let stepped = same_steps((&mut burns, &mut fused), 0.1, &tied, 0..4, grads);
    assert!(parameters(&stepped) != parameters(&tied));
}

/// Layers on two devices, where there are two: parameters and states stay on their own.
#[test]
fn parameters_on_several_devices() {
    let mut net = Net::full(&Device::default().autodiff());
    net.head = net.head.fork(&flex());
    let mut burns = ModuleOptimizer::from(config().build());
    let mut fused = FusedAdamW::new(config());
    let expected = steps(&mut burns, 0.01, net.clone(), 0..4, by_hand);
    let stepped = steps(&mut fused, 0.01, net.clone(), 0..4, by_hand);
    assert_eq!(stepped.hidden.weight.device(), net.hidden.weight.device());
    assert_eq!(stepped.head.weight.device(), flex());
    // The head's, on Flex.
    let (stepped, expected) = (parameters(&stepped), parameters(&expected));
    assert!(stepped[4..] == expected[4..]);
    if Device::default() == Device::flex() {
        assert!(stepped == expected);
        assert_eq!(state(&fused), state(&burns));
    }
}

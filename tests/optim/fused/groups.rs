//! Groups with learning rates and settings of their own; parameters that are frozen, or used twice; modules that somebody else holds.

use super::{adam, by_hand, gradients, same_steps};
use crate::support::*;

fn config() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

/// The last group that matches counts: `head.bias` is stepped as the head is. A group that is added later begins without state; the others
/// keep theirs.
#[test]
fn groups_have_settings_and_learning_rates() {
    let [biases, head] = ["bias", "head"].map(ParamGroup::from_predicate);
    let plain = config().with_weight_decay(0.0);
    let slow = config().with_beta_1(0.5).with_amsgrad(true);
    let (mut burns, mut fused) = (config().init(), FusedAdamW::new(config()));
    let start = Net::full(&flex());
    let start = same_steps((&mut burns, &mut fused), 0.01, &start, 0..5, of_batch);

    burns = burns.with_group(biases.clone(), plain.build(), None);
    burns = burns.with_group(
        head.clone(),
        slow.build(),
        Some(GradientClipping::Norm(0.01)),
    );
    let slow = slow.with_grad_clipping(Some(GradientClippingConfig::Norm(0.01)));
    fused = fused.with_group(biases, plain).with_group(head, slow);
    assert_eq!(state(&fused), state(&burns));
    let mut scheduler = ModuleLrScheduler::new(0.01)
        .with_group(ParamGroup::from_predicate("hidden"), 0.05)
        .with_group(ParamGroup::from_path("hidden.bias"), 0.002);
    let lr = scheduler.step();
    same_steps((&mut burns, &mut fused), lr, &start, 5..50, of_batch);
    let names = state(&fused).tensors.into_keys();
    assert_eq!(names.filter(|name| name.contains("max")).count(), 2);
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
    let optims = (&mut sgd.init(), &mut FusedSgd::new(sgd));
    let stepped = same_steps(optims, 0.1, &tied, 0..4, grads);
    assert!(parameters(&stepped) != parameters(&tied));
}

/// Layers on two devices, where there are two: parameters and states stay on their own.
#[test]
fn parameters_on_several_devices() {
    let mut net = Net::full(&Device::default().autodiff());
    net.head = net.head.fork(&flex());
    let (mut burns, mut fused) = (config().init(), FusedAdamW::new(config()));
    let expected = steps(&mut burns, 0.01, net.clone(), 0..4, by_hand);
    let stepped = steps(&mut fused, 0.01, net.clone(), 0..4, by_hand);
    assert_eq!(stepped.hidden.weight.device(), net.hidden.weight.device());
    assert_eq!(stepped.head.weight.device(), flex());
    // The head's, on Flex.
    let (stepped, expected) = (parameters(&stepped), parameters(&expected));
    assert!(stepped[4..] == expected[4..]);
    if on_flex() {
        assert!(stepped == expected);
        assert_eq!(state(&fused), state(&burns));
    }
}

/// Parameters are overwritten in place, unless a clone of the module holds them: that keeps its values, and what was stepped is right all
/// the same.
#[test]
fn a_held_module_stays() {
    let addresses = |net: &Net| {
        let stem = net.stem.as_ref().unwrap();
        let linear = [&net.hidden, &net.head].map(|layer| address(layer.weight.base().inner()));
        (address(stem.weight.base().inner()), linear)
    };
    let ends = [false, true].map(|is_held| {
        let mut fused = adam();
        let mut net = steps(&mut fused, 0.01, Net::full(&flex()), 0..1, of_batch);
        for number in 1..4 {
            let (before, places) = (parameters(&net), addresses(&net));
            let held = is_held.then(|| net.clone());
            net = steps(&mut fused, 0.01, net, number..number + 1, of_batch);
            assert_eq!(addresses(&net) == places, !is_held, "step {number}");
            assert!(held.is_none_or(|held| parameters(&held) == before));
            assert!(parameters(&net) != before);
        }
        parameters(&net)
    });
    assert!(ends[0] == ends[1]);
}

/// A step that panics leaves nothing open: other optimizers of the thread step on. Its own state is lost, and says so.
#[test]
fn after_a_panic() {
    let mut fused = adam();
    let net = steps(&mut fused, 0.01, Net::full(&flex()), 0..2, of_batch);
    let mut wrong = GradientsParams::new();
    let other_shape = Tensor::<2>::ones([8, 5], &Device::flex());
    wrong.register(net.hidden.weight.id, other_shape);
    let (mut fork, lost) = (fused.clone(), net.clone());
    panic_message(|| fused.step(0.1, lost, wrong));

    // Burn's `ModuleOptimizer` steps parameters one by one.
    let mut burns = fork.clone().into_inner().unwrap();
    same_steps((&mut fork, &mut burns), 0.01, &net, 2..5, of_batch);

    let message = panic_message(|| steps(&mut fused, 0.1, net.clone(), 2..3, of_batch));
    says(&message, ["an earlier step has panicked"]);
}

/// No gradients, none of this module, and no module: nothing happens.
#[test]
fn without_gradients() {
    let (mut fused, net) = (adam(), Net::full(&flex()));
    let other: Linear = LinearConfig::new(2, 2).init(&flex());
    let others = gradients(&other, 0, FloatDType::F32);
    for grads in [GradientsParams::new(), others] {
        let stepped = fused.step(0.1, net.clone(), grads);
        assert!(parameters(&stepped) == parameters(&net));
    }
    fused.step(0.1, [(); 0].map(|()| net.clone()), by_hand(&net, 0));
    assert!(state(&fused).tensors.is_empty());
}

//! Groups with learning rates and settings of their own; parameters that are frozen, or used twice; modules that somebody else holds.

use super::{adam, same_steps, steps};
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
    let start = Net::new(&flex());
    let start = same_steps((&mut burns, &mut fused), 0.01, &start, 0..5, by_hand);

    burns = burns.with_group(biases.clone(), plain.build(), None);
    let norm = Some(GradientClipping::Norm(0.01));
    burns = burns.with_group(head.clone(), slow.build(), norm);
    let slow = slow.with_grad_clipping(Some(GradientClippingConfig::Norm(0.01)));
    fused = fused.with_group(biases, plain).with_group(head, slow);
    let hidden = ParamGroup::from_predicate("hidden");
    let bias = ParamGroup::from_path("hidden.bias");
    let lr = ModuleLrScheduler::new(0.01).with_group(hidden, 0.05);
    let lr = lr.with_group(bias, 0.002).step();
    same_steps((&mut burns, &mut fused), lr, &start, 5..50, by_hand);
}

/// As Burn has it. And the others keep what autodiff knows of them.
#[test]
fn frozen_parameters_stay() {
    let device = flex().gradient_checkpointing();
    let mut net = Net::new(&device);
    net.hidden = net.hidden.no_grad();
    let optims = (&mut config().init(), &mut FusedAdamW::new(config()));
    let grads = |net: &Net, step| {
        let loss = net.forward(random(step, [3, 8], &device)).square().mean();
        GradientsParams::from_grads(loss.backward(), net)
    };
    let stepped = same_steps(optims, 0.01, &net, 0..3, grads);
    assert!(stored(&stepped.hidden) == stored(&net.hidden));
    assert!(stored(&stepped.head) != stored(&net.head));
    let (frozen, weight) = (stepped.hidden.weight.val(), stepped.head.weight.val());
    assert!(!frozen.is_require_grad() && weight.is_require_grad());
    let strategy = device.gradient_checkpointing_strategy();
    assert_eq!(weight.gradient_checkpointing_strategy(), strategy);
}

/// A parameter that stands twice is stepped as Burn steps it.
#[test]
fn tied_parameters() {
    let shared = Param::from_tensor(random::<2>(1, [2, 2], &flex()));
    let between = Param::from_tensor(random::<1>(2, [2], &flex()));
    let tied = (shared.clone(), between, shared);
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let optims = (&mut sgd.init(), &mut FusedSgd::new(sgd));
    let stepped = same_steps(optims, 0.1, &tied, 0..4, by_hand);
    assert!(parameters(&stepped) != parameters(&tied));
}

/// Layers on two devices, where there are two: parameters and states stay on their own.
#[test]
fn parameters_on_several_devices() {
    let mut net = Net::new(&Device::default().autodiff());
    net.head = net.head.fork(&flex());
    let (mut burns, mut fused) = (config().init(), FusedAdamW::new(config()));
    let expected = steps(&mut burns, net.clone(), 0..4);
    let stepped = steps(&mut fused, net.clone(), 0..4);
    assert_eq!(stepped.hidden.weight.device(), net.hidden.weight.device());
    assert_eq!(stepped.head.weight.device(), flex());
    // The head's, on Flex.
    let (stepped, expected) = (parameters(&stepped), parameters(&expected));
    assert!(stepped[3..] == expected[3..]);
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
        let linear = [&net.hidden, &net.head].map(|layer| address(layer.weight.base().inner()));
        (address(net.stem.base().inner()), linear)
    };
    let ends = [false, true].map(|is_held| {
        let mut fused = adam();
        let mut net = steps(&mut fused, Net::new(&flex()), 0..1);
        for number in 1..4 {
            let (before, places) = (parameters(&net), addresses(&net));
            let held = is_held.then(|| net.clone());
            net = steps(&mut fused, net, number..number + 1);
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
    let net = steps(&mut fused, Net::new(&flex()), 0..2);
    let mut wrong = GradientsParams::new();
    let other_shape = Tensor::<2>::ones([8, 5], &Device::flex());
    wrong.register(net.hidden.weight.id, other_shape);
    let (mut fork, lost) = (fused.clone(), net.clone());
    panic_message(|| fused.step(0.1, lost, wrong));

    // Burn's `ModuleOptimizer` steps parameters one by one.
    let mut burns = fork.clone().into_inner().unwrap();
    same_steps((&mut fork, &mut burns), 0.01, &net, 2..5, by_hand);

    let message = panic_message(|| steps(&mut fused, net, 2..3));
    says(&message, ["an earlier step has panicked"]);
}

/// No gradients, none of this module, and no module: nothing happens.
#[test]
fn without_gradients() {
    let (mut fused, net) = (adam(), Net::new(&flex()));
    let other: Linear = LinearConfig::new(2, 2).init(&flex());
    for grads in [GradientsParams::new(), by_hand(&other, 0)] {
        let stepped = fused.step(0.1, net.clone(), grads);
        assert!(parameters(&stepped) == parameters(&net));
    }
    fused.step(0.1, Vec::<Net>::new(), by_hand(&net, 0));
    assert!(state(&fused).tensors.is_empty());
}

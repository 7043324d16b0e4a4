//! What is overwritten in place, and what somebody else holds.

use super::{by_hand, gradients, run::adam, same_steps};
use crate::support::*;

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

/// No gradients, and none of this module: nothing happens.
#[test]
fn without_gradients() {
    let mut fused = adam();
    let net = Net::full(&flex());
    let before = parameters(&net);
    let net = fused.step(0.1, net, GradientsParams::new());
    assert!(parameters(&net) == before);
    let other: Linear = LinearConfig::new(2, 2).init(&flex());
    let others = gradients(&other, 0, FloatDType::F32);
    let net = fused.step(0.1, net, others);
    assert!(parameters(&net) == before);
    fused.step(0.1, [(); 0].map(|()| net.clone()), by_hand(&net, 0));
    assert!(state(&fused).tensors.is_empty());
}

//! A skipped step leaves parameters and optimizer state exactly as they were.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;

use crate::support::{Net, Poison, batch, gradient, parameters, scaled_step, scaler, state};

const PATHS: [&str; 6] = [
    "stem.weight",
    "stem.bias",
    "hidden.weight",
    "hidden.bias",
    "head.weight",
    "head.bias",
];

/// A model and an optimizer after one clean step, so that there is a state to keep.
fn begun(device: &Device) -> (Net, ScaledOptimizer<ModuleOptimizer>) {
    let net = Net::full(device);
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler());
    let net = scaled_step(&mut optim, net, 0);
    assert!(!state(optim.optimizer()).tensors.is_empty());
    (net, optim)
}

fn poisoned(
    optim: &ScaledOptimizer<ModuleOptimizer>,
    net: &Net,
    poison: Poison,
    device: &Device,
) -> ScaledGradients {
    let grads = optim.backward(net.loss(batch(1, device)), net);
    let grads = poison.gradients(grads.into_params(), net);
    scaled_by_hand(optim.scaler(), grads)
}

#[test]
fn whatever_overflows_and_wherever() {
    let device = Device::default().autodiff();
    let (mut net, mut optim) = begun(&device);
    let before = (parameters(&net), state(optim.optimizer()));
    let mut scale = optim.scaler().loss_scale();

    for path in PATHS {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let poison = gradient(path, value);
            for scaled in [true, false] {
                net = if scaled {
                    let grads = poisoned(&optim, &net, poison, &device);
                    optim.step(0.01, net, grads)
                } else {
                    let grads = net.loss(batch(1, &device)).backward();
                    let grads = GradientsParams::from_grads(grads, &net);
                    let grads = poison.gradients(grads, &net);
                    optim.step(0.01, net, grads)
                };

                let scaler = optim.scaler();
                assert_eq!(scaler.last_outcome(), Some(StepOutcome::Skipped));
                let status = scaler.last_status().unwrap();
                assert_eq!(status.overflow_parameter(), Some(path));
                assert_eq!(status.non_finite(), 1);
                assert_eq!(scaler.loss_scale(), scale / 2.0);
                scale = scaler.loss_scale();
                let after = (parameters(&net), state(optim.optimizer()));
                assert!(before == after, "{value} in {path} changed something");
            }
        }
    }
    assert_eq!(optim.scaler().counters().skipped(), 36);
    // And it goes on: gradients are still tracked.
    let net = scaled_step(&mut optim, net, 1);
    assert_eq!(optim.scaler().last_status().unwrap().gradients(), 6);
    let after = parameters(&net);
    let mut pairs = before.0.iter().zip(&after);
    assert!(pairs.all(|(before, after)| before != after));
    assert_eq!(net.num_params(), Net::full(&device).num_params());
}

/// The decision was made when the gradients were unscaled: whoever replaces the bad value does not undo it.
#[test]
fn the_same_with_gradients_unscaled_before() {
    let device = Device::default().autodiff();
    for repaired in [false, true] {
        let (net, mut optim) = begun(&device);
        let before = (parameters(&net), state(optim.optimizer()));
        let poison = gradient("head.bias", f32::NAN);
        let grads = poisoned(&optim, &net, poison, &device);
        let mut grads = optim.unscale(grads, &net).unwrap();
        assert!(grads.has_overflow());
        if repaired {
            let id = net.head.bias.as_ref().unwrap().id;
            let zeros = grads.get::<1>(id).unwrap().zeros_like();
            grads.params_mut().register(id, zeros);
        }
        let net = optim.step(0.01, net, grads);
        assert!(before == (parameters(&net), state(optim.optimizer())));
        assert_eq!(optim.scaler().counters().skipped(), 1);
    }
}

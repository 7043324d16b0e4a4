//! Unscaling ahead of the step, changing the scaler on the way, and going on without it.

use burn_amp_tests::prelude::*;

use crate::support::{Net, batch, parameters, scaler, state};

const LR: f64 = 0.01;

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

fn plain_step(net: Net, optim: &mut ModuleOptimizer, step: usize, device: &Device) -> Net {
    let loss = net.loss(batch(step, device));
    let grads = GradientsParams::from_grads(loss.backward(), &net);
    optim.step(LR, net, grads)
}

fn scaled_step(
    net: Net,
    optim: &mut ScaledOptimizer<ModuleOptimizer>,
    step: usize,
    device: &Device,
) -> Net {
    let grads = optim.backward(net.loss(batch(step, device)), &net);
    optim.step(LR, net, grads)
}

#[test]
fn unscale_then_step_is_step() {
    let device = Device::flex().autodiff();
    let mut at_once = (Net::full(&device), ScaledOptimizer::new(adam(), scaler()));
    let mut ahead = (at_once.0.clone(), ScaledOptimizer::new(adam(), scaler()));

    for step in 0..5 {
        at_once.0 = scaled_step(at_once.0, &mut at_once.1, step, &device);

        let (net, optim) = &mut ahead;
        let grads = optim.backward(net.loss(batch(step, &device)), net);
        let grads = optim.unscale(grads, net).unwrap();
        assert!(grads.status().norm() > 0.0);
        *net = optim.step(LR, net.clone(), grads);

        assert!(parameters(&at_once.0) == parameters(net), "step {step}");
        assert_eq!(at_once.1.scaler().counters(), optim.scaler().counters());
        assert_eq!(at_once.1.scaler().schedule(), optim.scaler().schedule());
        assert_eq!(
            at_once.1.scaler().last_status(),
            optim.scaler().last_status()
        );
    }
    assert_eq!(ahead.1.scaler().counters().stepped(), 5);
    assert!(ahead.1.scaler().loss_scale() > 65536.0);
}

/// What is done to the gradients between `unscale` and `step` is what the optimizer gets.
#[test]
fn changes_between_unscale_and_step_count() {
    let device = Device::flex().autodiff();
    let net = Net::full(&device);
    let mut by_hand = ScaledOptimizer::new(adam(), scaler());
    let mut half = ScaledOptimizer::new(adam(), scaler());

    let grads = by_hand.backward(net.loss(batch(0, &device)), &net);
    let grads = by_hand.unscale(grads, &net).unwrap().mul_scalar(0.5);
    let by_hand_net = by_hand.step(LR, net.clone(), grads);
    let grads = half.backward(net.loss(batch(0, &device)).mul_scalar(0.5), &net);
    let half_net = half.step(LR, net.clone(), grads);

    assert!(parameters(&by_hand_net) == parameters(&half_net));
    assert_eq!(state(by_hand.optimizer()), state(half.optimizer()));
}

#[test]
fn into_inner_goes_on_without_scaling() {
    let device = Device::flex().autodiff();
    let mut net = Net::full(&device);
    let mut plain_net = net.clone();
    let mut plain = adam();
    for step in 0..6 {
        plain_net = plain_step(plain_net, &mut plain, step, &device);
    }

    let mut optim = ScaledOptimizer::new(adam(), scaler());
    for step in 0..3 {
        net = scaled_step(net, &mut optim, step, &device);
    }
    let mut inner = optim.into_inner();
    for step in 3..6 {
        net = plain_step(net, &mut inner, step, &device);
    }

    assert!(parameters(&net) == parameters(&plain_net));
    assert_eq!(state(&inner), state(&plain));
}

#[test]
fn scaler_mut_changes_the_scale_and_not_the_trajectory() {
    let device = Device::flex().autodiff();
    let mut net = Net::full(&device);
    let mut plain_net = net.clone();
    let mut plain = adam();
    let mut optim = ScaledOptimizer::new(adam(), scaler());

    for (step, scale) in [256.0, 1.0, 0.25, 16777216.0].into_iter().enumerate() {
        optim.scaler_mut().set_loss_scale(scale).unwrap();
        let grads = optim.backward(net.loss(batch(step, &device)), &net);
        assert_eq!(grads.loss_scale(), scale as f32);
        net = optim.step(LR, net, grads);
        plain_net = plain_step(plain_net, &mut plain, step, &device);
        assert!(parameters(&net) == parameters(&plain_net), "scale {scale}");
    }
    assert_eq!(optim.scaler().counters().stepped(), 4);
}

/// Gradients know the scale of their loss: a change of the scaler's in between does them no harm.
#[test]
fn scaled_gradients_are_unscaled_by_their_own_scale() {
    let device = Device::flex().autodiff();
    let net = Net::full(&device);
    let mut optim = ScaledOptimizer::new(adam(), scaler());
    let grads = optim.backward(net.loss(batch(0, &device)), &net);
    optim.scaler_mut().set_loss_scale(2.0).unwrap();
    let moved = optim.step(LR, net.clone(), grads);

    let plain = plain_step(net, &mut adam(), 0, &device);
    assert!(parameters(&moved) == parameters(&plain));
}

#[test]
fn optimizer_mut_reaches_the_inner_optimizer() {
    let device = Device::flex().autodiff();
    let mut net = Net::full(&device);
    let mut optim = ScaledOptimizer::new(adam(), scaler());
    net = scaled_step(net, &mut optim, 0, &device);
    let clipped = adam().with_grad_clipping(GradientClipping::Value(1e-3));
    *optim.optimizer_mut() = clipped.clone();
    let plain_net = plain_step(net.clone(), &mut clipped.clone(), 1, &device);
    net = scaled_step(net, &mut optim, 1, &device);

    assert!(optim.optimizer().has_gradient_clipping());
    assert!(parameters(&net) == parameters(&plain_net));
}

#[test]
fn a_clone_is_a_fork() {
    let device = Device::flex().autodiff();
    let mut net = Net::full(&device);
    let mut optim = ScaledOptimizer::new(adam(), scaler());
    net = scaled_step(net, &mut optim, 0, &device);
    let before = state(optim.optimizer());

    let mut fork = optim.clone();
    let forked = scaled_step(net.clone(), &mut fork, 1, &device);
    assert_eq!(state(optim.optimizer()), before);
    assert_eq!(optim.scaler().counters().steps(), 1);
    assert_eq!(fork.scaler().counters().steps(), 2);

    let later = scaled_step(net, &mut optim, 1, &device);
    assert!(parameters(&forked) == parameters(&later));
    assert_eq!(state(optim.optimizer()), state(fork.optimizer()));
}

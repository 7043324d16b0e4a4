//! What is changed between the steps or within one: gradients, the scale, the inner optimizer.

use crate::support::*;

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

fn scaled() -> ScaledOptimizer {
    ScaledOptimizer::new(adam(), scaler())
}

fn net() -> Net {
    Net::full(&flex())
}

/// Without scaling.
fn plain_step(optim: &mut ModuleOptimizer, net: Net, number: usize) -> Net {
    steps(optim, 0.01, net, number..number + 1, of_batch)
}

fn scaled_step(optim: &mut ScaledOptimizer, net: Net, number: usize) -> Net {
    let grads = optim.backward(net.loss(batch(number, &flex())), &net);
    optim.step(0.01, net, grads)
}

/// Before a loss is scaled, or after: gradients know the scale of their own loss.
#[test]
fn scaler_mut_changes_the_scale_and_not_the_trajectory() {
    let mut net = net();
    let mut expected = net.clone();
    let (mut plain, mut optim) = (adam(), scaled());
    for (number, scale) in [256.0, 1.0, 0.25, 16777216.0].into_iter().enumerate() {
        optim.scaler_mut().set_loss_scale(scale).unwrap();
        let grads = optim.backward(net.loss(batch(number, &flex())), &net);
        assert_eq!(grads.loss_scale(), scale as f32);
        if number % 2 == 1 {
            optim.scaler_mut().set_loss_scale(2.0).unwrap();
        }
        net = optim.step(0.01, net, grads);
        expected = plain_step(&mut plain, expected, number);
        assert!(parameters(&net) == parameters(&expected), "scale {scale}");
    }
    assert_eq!(optim.scaler().counters().stepped(), 4);
}

#[test]
fn optimizer_mut_reaches_the_inner_optimizer() {
    let mut optim = scaled();
    let net = scaled_step(&mut optim, net(), 0);
    let mut clipped = adam().with_grad_clipping(GradientClipping::Value(1e-3));
    *optim.optimizer_mut() = clipped.clone();
    let expected = plain_step(&mut clipped, net.clone(), 1);
    let net = scaled_step(&mut optim, net, 1);

    assert!(optim.optimizer().has_gradient_clipping());
    assert!(parameters(&net) == parameters(&expected));
}

#[test]
fn wrapping_keeps_threads_possible() {
    fn sendable<T: Send + Sync + Clone>() {}
    sendable::<ScaledOptimizer<ModuleOptimizer>>();
}

//! What is changed between the steps or within one: gradients, the scale, the inner optimizer.

use crate::support::*;

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

fn scaled<O: ModuleOptim>(optim: O) -> ScaledOptimizer<O> {
    ScaledOptimizer::new(optim, scaler())
}

fn net() -> Net {
    Net::full(&flex())
}

/// Without scaling.
fn plain_step(optim: &mut ModuleOptimizer, net: Net, number: usize) -> Net {
    steps(optim, 0.01, net, number..number + 1, of_batch)
}

fn scaled_step<O: ModuleOptim>(optim: &mut ScaledOptimizer<O>, net: Net, number: usize) -> Net {
    let grads = optim.backward(net.loss(batch(number, &flex())), &net);
    optim.step(0.01, net, grads)
}

/// Before a loss is scaled, or after: gradients know the scale of their own loss.
#[test]
fn scaler_mut_changes_the_scale_and_not_the_trajectory() {
    let mut net = net();
    let mut expected = net.clone();
    let (mut plain, mut optim) = (adam(), scaled(adam()));
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
    let mut optim = scaled(adam());
    let net = scaled_step(&mut optim, net(), 0);
    let mut clipped = adam().with_grad_clipping(GradientClipping::Value(1e-3));
    *optim.optimizer_mut() = clipped.clone();
    let expected = plain_step(&mut clipped, net.clone(), 1);
    let net = scaled_step(&mut optim, net, 1);

    assert!(optim.optimizer().has_gradient_clipping());
    assert!(parameters(&net) == parameters(&expected));
}

/// Which goes its own way, whether the host or the device decides its steps.
#[test]
fn a_clone_is_a_fork() {
    fn is_sync<T: Send + Sync>(_: &T) {}

    fn check<O: ModuleOptim + Clone + Send + Sync>(optim: O) {
        let mut optim = scaled(optim);
        let net = scaled_step(&mut optim, net(), 0);
        let before = state(optim.optimizer());

        let mut fork = optim.clone();
        is_sync(&fork);
        let forked = scaled_step(&mut fork, net.clone(), 1);
        assert_eq!(state(optim.optimizer()), before);
        optim.synchronize().unwrap();
        fork.synchronize().unwrap();
        assert_eq!(optim.scaler().counters().steps(), 1);
        assert_eq!(fork.scaler().counters().steps(), 2);

        let later = scaled_step(&mut optim, net, 1);
        assert!(parameters(&forked) == parameters(&later));
        assert_eq!(state(optim.optimizer()), state(fork.optimizer()));
    }

    check(adam());
    check(FusedAdam::new(AdamConfig::new()));
}

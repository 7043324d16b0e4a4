//! Gradients that are all zero though the loss is not: one warning.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{only, says};
use log::Level;

use crate::support::{Model, captured, scaler, unscaled};

fn loss(value: f32) -> Tensor<1> {
    Tensor::from_floats([value], &Device::flex())
}

fn step(scaler: &mut GradScaler, model: &Model, grads: GradientsParams) {
    let grads = unscaled(scaler, grads, model);
    scaler.step(&mut SgdConfig::new().init(), 0.1, model.clone(), grads);
    scaler.update().unwrap();
}

/// The warnings of five steps with gradients of zero and a loss of `value`.
fn warnings(mut scaler: GradScaler, value: f32) -> Vec<String> {
    let model = Model::new();
    captured(Level::Warn, || {
        for _ in 0..5 {
            let _ = scaler.scale(loss(value));
            step(&mut scaler, &model, model.gradients(|_| 0.0));
        }
    })
}

#[test]
fn a_nonzero_loss_warns_once() {
    for value in [1.0, -1e-30, f32::MAX] {
        let messages = warnings(scaler(4096.0), value);
        let message = only(&messages);
        says(&message, ["underflow", "4096"]);
    }
}

/// The losses of each call of `scale` in a step, its gradients, and how many warnings there are in two such steps.
#[test]
fn what_counts_as_an_underflow() {
    let model = Model::new();
    for (name, calls, gradient, expected) in [
        ("zero of another sign", vec![vec![1.0]], -0.0, 1),
        ("a zero loss", vec![vec![0.0]], 0.0, 0),
        ("another zero loss", vec![vec![-0.0]], 0.0, 0),
        // As with several workers, which scale their losses with scalers of their own: it may be zero.
        ("a loss that was not seen", vec![], 0.0, 0),
        // Of several losses, one that is not zero is enough.
        ("two zero losses", vec![vec![0.0, 0.0]], 0.0, 0),
        ("one of two losses", vec![vec![0.0, 2.0]], 0.0, 1),
        // Losses that are scaled in separate calls belong to the same step.
        ("one of two calls", vec![vec![2.0], vec![0.0]], 0.0, 1),
    ] {
        let mut scaler = scaler(4096.0);
        let messages = captured(Level::Warn, || {
            for _ in 0..2 {
                for losses in &calls {
                    let losses = losses.iter().map(|value| loss(*value));
                    let _ = scaler.scale(losses.collect::<Vec<_>>());
                }
                step(&mut scaler, &model, model.gradients(|_| gradient));
            }
        });
        assert_eq!(messages.len(), expected, "{name}: {messages:?}");
    }
}

#[test]
fn a_disabled_scaler_does_not_warn() {
    let config = GradScalerConfig::new().with_enabled(false);
    assert_eq!(warnings(config.init().unwrap(), 1.0), [""; 0]);
}

#[test]
fn one_nonzero_gradient_or_none_at_all_is_no_underflow() {
    let model = Model::new();
    let messages = captured(Level::Warn, || {
        let mut scaler = scaler(4096.0);
        let one = |index| if index == 52 { 1e-30 } else { 0.0 };
        for grads in [model.gradients(one), GradientsParams::new()] {
            let _ = scaler.scale(loss(1.0));
            step(&mut scaler, &model, grads);
        }
    });
    // Of none at all it is said that there are none.
    says(only(&messages), ["no gradient"]);
}

/// A zero loss excuses its own step only.
#[test]
fn a_later_underflow_still_warns() {
    let model = Model::new();
    let mut scaler = scaler(4096.0);
    let mut run = |value| {
        captured(Level::Warn, || {
            let _ = scaler.scale(loss(value));
            step(&mut scaler, &model, model.gradients(|_| 0.0));
        })
    };
    assert_eq!(run(0.0).len(), 0);
    assert_eq!(run(0.5).len(), 1);
    assert_eq!(run(0.5).len(), 0);
}

/// The losses of an iteration are those of all its optimizers.
#[test]
fn several_optimizers_with_a_zero_loss() {
    let models = [Model::new(), Model::new()];
    let mut scaler = scaler(4096.0);
    let messages = captured(Level::Warn, || {
        let _ = scaler.scale((loss(0.0), loss(0.0)));
        for model in &models {
            let grads = unscaled(&scaler, model.gradients(|_| 0.0), model);
            scaler.step(&mut SgdConfig::new().init(), 0.1, model.clone(), grads);
        }
        scaler.update().unwrap();
    });
    assert_eq!(messages, [""; 0]);
}

#[test]
fn the_scaled_optimizer_warns_too() {
    let model = Model::new();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler(2048.0));
    let messages = captured(Level::Warn, || {
        for _ in 0..3 {
            // Multiplied by zero: the loss is 1 whatever the parameters are.
            let loss = (model.vector.val() * 0.0).sum() + 1.0;
            let grads = optim.backward(loss, &model);
            optim.step(0.1, model.clone(), grads);
        }
    });
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].contains("2048"));
}

/// At the border no loss is seen: what counts is the gradient that comes to it.
#[test]
fn gradients_that_are_lost_inside_a_scope_warn_once() {
    let run = |factor: f32| {
        let one = GradScalerConfig::new().with_init_scale(1.0);
        let amp = MixedPrecision::f16().with_scaler(one).unwrap();
        let model = Model::new().apply_reparameterization(amp.clone());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        captured(Level::Warn, || {
            for _ in 0..3 {
                let output = amp.autocast((), |()| model.vector.val());
                let grads = (output * factor).sum().backward();
                let grads = GradientsParams::from_grads(grads, &model);
                optim.step(0.1, model.clone(), grads);
            }
        })
    };
    let messages = run(1e-9);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].contains("underflow"), "{messages:?}");
    for factor in [0.0, 1e-3] {
        assert_eq!(run(factor), [""; 0], "{factor}");
    }
}

/// The warnings of two windows with gradients of zero and losses of `value`.
fn warnings_of_windows(rule: bool, value: f32) -> Vec<String> {
    let model = Model::new();
    let config = AccumulationConfig::new(2).with_skip_micro_batch(rule);
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler(4096.0))
        .with_accumulation(config)
        .unwrap();
    captured(Level::Warn, || {
        for _ in 0..4 {
            let _ = optim.scaler().scale(loss(value));
            let grads = optim.scaler().scaled(model.gradients(|_| 0.0)).unwrap();
            optim.step(0.1, model.clone(), grads);
        }
    })
}

#[test]
fn windows_are_watched_with_their_losses() {
    for rule in [false, true] {
        assert_eq!(warnings_of_windows(rule, 1.0).len(), 1, "{rule:?}");
        assert_eq!(warnings_of_windows(rule, 0.0), [""; 0], "{rule:?}");
    }
}

#[test]
fn a_dropped_micro_batch_is_logged_as_such() {
    let model = Model::new();
    let rule = AccumulationConfig::new(2).with_skip_micro_batch(true);
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler(4096.0))
        .with_accumulation(rule)
        .unwrap();
    let messages = captured(Level::Info, || {
        optim.step(0.1, model.clone(), model.overflowing(4096.0));
    });
    says(
        only(&messages),
        ["micro-batch dropped", "matrix", "4096", "2048"],
    );
}

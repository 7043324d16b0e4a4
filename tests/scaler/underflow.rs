//! Gradients that are all zero though the loss is not: one warning.

use burn_amp_tests::{prelude::*, trial::*};

fn loss(value: f32) -> Tensor<1> {
    Tensor::from_floats([value], &Device::flex())
}

fn warnings(action: impl FnOnce()) -> Vec<String> {
    captured(Level::Warn, action)
}

/// What an iteration warns of, in which each of these calls of `scale` had these losses.
fn iteration(run: &mut ByHand, calls: &[&[f32]], gradient: [f64; 10]) -> Vec<String> {
    warnings(|| {
        for losses in calls {
            let losses = losses.iter().map(|value| loss(*value));
            drop(run.scaler.scale(losses.collect::<Vec<_>>()));
        }
        run.take(run.unscale(run.model.plain(gradient))).unwrap();
        run.scaler.update().unwrap();
    })
}

/// The losses of each call of `scale` in a step, its gradients, and how many warnings there are in two such steps.
#[test]
fn what_counts_as_an_underflow() {
    let zeros = [0.0; 10];
    type Case<'a> = (&'a str, &'a [&'a [f32]], [f64; 10], usize);
    let cases: &[Case] = &[
        ("a loss", &[&[1.0]], zeros, 1),
        ("a tiny loss", &[&[-1e-30]], zeros, 1),
        ("the largest loss", &[&[f32::MAX]], zeros, 1),
        ("zero of another sign", &[&[1.0]], [-0.0; 10], 1),
        ("a zero loss", &[&[0.0]], zeros, 0),
        ("another zero loss", &[&[-0.0]], zeros, 0),
        // As with several workers, which scale their losses with scalers of their own: it may be zero.
        ("a loss that was not seen", &[], zeros, 0),
        // Of several losses, one that is not zero is enough.
        ("two zero losses", &[&[0.0, 0.0]], zeros, 0),
        ("one of two losses", &[&[0.0, 2.0]], zeros, 1),
        // Losses that are scaled in separate calls belong to the same step.
        ("one of two calls", &[&[2.0], &[0.0]], zeros, 1),
        ("one gradient", &[&[1.0]], norm(1e-30), 0),
    ];
    for (name, calls, gradient, expected) in cases {
        let mut run = ByHand::at(4096.0);
        let messages = [(); 2].map(|()| iteration(&mut run, calls, *gradient));
        let messages = messages.concat();
        assert_eq!(messages.len(), *expected, "{name}: {messages:?}");
        for message in messages {
            says(&message, ["underflow", "4096"]);
        }
    }
    let disabled = GradScalerConfig::new().with_enabled(false);
    let messages = iteration(&mut ByHand::new(disabled), &[&[1.0]], zeros);
    assert_eq!(messages, [""; 0]);
    // A zero loss excuses its own step only.
    let mut run = ByHand::at(4096.0);
    for (value, expected) in [(0.0, 0), (0.5, 1), (0.5, 0)] {
        let messages = iteration(&mut run, &[&[value]], zeros);
        assert_eq!(messages.len(), expected, "{value}: {messages:?}");
    }
}

/// The losses of an iteration are those of all its optimizers, and of copies of the scaler, which each worker has.
#[test]
fn losses_of_several_optimizers_and_workers() {
    let mut run = ByHand::at(4096.0);
    let mut optims = [(); 2].map(|()| SgdConfig::new().init());
    for (value, expected) in [(0.0, 0), (1.0, 1)] {
        let messages = warnings(|| {
            let workers = [(); 2].map(|()| run.scaler.clone());
            std::thread::scope(|threads| {
                for worker in workers {
                    threads.spawn(move || drop(worker.scale((loss(0.0), loss(value)))));
                }
            });
            for optim in &mut optims {
                let grads = run.scaler.scaled(run.model.plain([0.0; 10])).unwrap();
                let grads = run.scaler.unscale(grads, &run.model).unwrap();
                run.scaler.step(optim, 0.1, run.model.clone(), grads);
            }
            run.scaler.update().unwrap();
        });
        assert_eq!(messages.len(), expected, "{value}: {messages:?}");
    }
}

/// At the border no loss is seen: what counts is the gradient that comes to it.
#[test]
fn gradients_that_are_lost_inside_a_scope_warn_once() {
    let run = |factor| {
        let mut run = Trial::at_border(&f16_under(at_scale(1.0)));
        warnings(|| (0..3).for_each(|_| run.take(run.in_scope(factor))))
    };
    says(only(&run(1e-9)), ["underflow"]);
    for factor in [0.0, 1e-3] {
        assert_eq!(run(factor), [""; 0], "{factor}");
    }
}

/// Of several steps or windows with gradients of zero.
#[test]
fn the_scaled_optimizer_warns_too() {
    for (size, rule) in [(1, false), (2, false), (2, true)] {
        for (factor, expected) in [(1.0, 1), (0.0, 0)] {
            let optim = sgd_under(at_scale(4096.0));
            let mut run = Trial::new(optim.with_accumulation(windows(size, rule)));
            let messages = warnings(|| {
                for _ in 0..4 {
                    // Multiplied by zero: the loss is the same whatever the parameters are.
                    let loss = (run.model.bias.val() * 0.0).sum() + factor;
                    run.take(run.backward(loss));
                }
            });
            assert_eq!(messages.len(), expected, "{size}, {rule}: {messages:?}");
            assert!(messages.iter().all(|message| message.contains("4096")));
        }
    }
}

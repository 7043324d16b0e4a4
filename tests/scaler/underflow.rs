//! Gradients that are all zero though the loss is not: one warning.

use super::support::*;

fn loss(value: f32) -> Tensor<1> {
    Tensor::from_floats([value], &Device::flex())
}

fn warnings(action: impl FnOnce()) -> Vec<String> {
    captured(Level::Warn, action)
}

/// What an iteration warns of, in which each of these calls of `scale` had these losses.
fn iteration(run: &mut Trial, calls: &[&[f32]], gradient: fn(usize) -> f64) -> Vec<String> {
    warnings(|| {
        for losses in calls {
            let losses = losses.iter().map(|value| loss(*value));
            drop(run.scaler.scale(losses.collect::<Vec<_>>()));
        }
        run.iterate_with(run.model.gradients(gradient));
    })
}

/// The losses of each call of `scale` in a step, its gradients, and how many warnings there are in two such steps.
#[test]
fn what_counts_as_an_underflow() {
    type Case<'a> = (&'a str, &'a [&'a [f32]], fn(usize) -> f64, usize);
    let cases: &[Case] = &[
        ("a loss", &[&[1.0]], |_| 0.0, 1),
        ("a tiny loss", &[&[-1e-30]], |_| 0.0, 1),
        ("the largest loss", &[&[f32::MAX]], |_| 0.0, 1),
        ("zero of another sign", &[&[1.0]], |_| -0.0, 1),
        ("a zero loss", &[&[0.0]], |_| 0.0, 0),
        ("another zero loss", &[&[-0.0]], |_| 0.0, 0),
        // As with several workers, which scale their losses with scalers of their own: it may be zero.
        ("a loss that was not seen", &[], |_| 0.0, 0),
        // Of several losses, one that is not zero is enough.
        ("two zero losses", &[&[0.0, 0.0]], |_| 0.0, 0),
        ("one of two losses", &[&[0.0, 2.0]], |_| 0.0, 1),
        // Losses that are scaled in separate calls belong to the same step.
        ("one of two calls", &[&[2.0], &[0.0]], |_| 0.0, 1),
        (
            "one gradient",
            &[&[1.0]],
            |at| f64::from(at == 52) * 1e-30,
            0,
        ),
    ];
    for (name, calls, gradient, expected) in cases {
        let mut run = Trial::at(4096.0);
        let messages = [(); 2].map(|()| iteration(&mut run, calls, *gradient));
        let messages = messages.concat();
        assert_eq!(messages.len(), *expected, "{name}: {messages:?}");
        for message in messages {
            says(&message, ["underflow", "4096"]);
        }
    }
    let disabled = GradScalerConfig::new().with_enabled(false);
    let messages = iteration(&mut Trial::new(disabled), &[&[1.0]], |_| 0.0);
    assert_eq!(messages, [""; 0]);
}

/// A zero loss excuses its own step only.
#[test]
fn a_later_underflow_still_warns() {
    let mut run = Trial::at(4096.0);
    for (value, expected) in [(0.0, 0), (0.5, 1), (0.5, 0)] {
        let messages = iteration(&mut run, &[&[value]], |_| 0.0);
        assert_eq!(messages.len(), expected, "{value}: {messages:?}");
    }
}

/// The losses of an iteration are those of all its optimizers, and of copies of the scaler, which each worker has.
#[test]
fn losses_of_several_optimizers_and_workers() {
    let models = [Model::new(), Model::new()];
    let mut scaler = scaler(4096.0);
    for (value, expected) in [(0.0, 0), (1.0, 1)] {
        let messages = warnings(|| {
            let workers = models.each_ref().map(|_| scaler.clone());
            std::thread::scope(|threads| {
                for worker in workers {
                    threads.spawn(move || drop(worker.scale((loss(0.0), loss(value)))));
                }
            });
            for model in &models {
                let grads = scaler.scaled(model.gradients(|_| 0.0)).unwrap();
                let grads = scaler.unscale(grads, model).unwrap();
                scaler.step(&mut SgdConfig::new().init(), 0.1, model.clone(), grads);
            }
            scaler.update().unwrap();
        });
        assert_eq!(messages.len(), expected, "{value}: {messages:?}");
    }
}

/// At the border no loss is seen: what counts is the gradient that comes to it.
#[test]
fn gradients_that_are_lost_inside_a_scope_warn_once() {
    let run = |factor: f32| {
        let amp = MixedPrecision::f16().with_scaler(at_scale(1.0)).unwrap();
        let model = Model::new().apply_reparameterization(amp.clone());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        warnings(|| {
            for _ in 0..3 {
                let output = amp.autocast((), |()| model.vector.val());
                let grads = (output * factor).sum().backward();
                let grads = GradientsParams::from_grads(grads, &model);
                optim.step(0.1, model.clone(), grads);
            }
        })
    };
    says(only(&run(1e-9)), ["underflow"]);
    for factor in [0.0, 1e-3] {
        assert_eq!(run(factor), [""; 0], "{factor}");
    }
}

/// Of several steps or windows with gradients of zero.
#[test]
fn the_scaled_optimizer_warns_too() {
    let model = Model::new();
    for (size, rule) in [(1, false), (2, false), (2, true)] {
        for (factor, expected) in [(1.0, 1), (0.0, 0)] {
            let config = AccumulationConfig::new(size).with_skip_micro_batch(rule);
            let optim = sgd_under(at_scale(4096.0)).with_accumulation(config);
            let mut optim = optim;
            let messages = warnings(|| {
                for _ in 0..4 {
                    // Multiplied by zero: the loss is the same whatever the parameters are.
                    let loss = (model.vector.val() * 0.0).sum() + factor;
                    let grads = optim.backward(loss, &model);
                    optim.step(0.1, model.clone(), grads);
                }
            });
            assert_eq!(messages.len(), expected, "{size}, {rule}: {messages:?}");
            assert!(messages.iter().all(|message| message.contains("4096")));
        }
    }
}

#[test]
fn a_dropped_micro_batch_is_logged_as_such() {
    let model = Model::new();
    let rule = AccumulationConfig::new(2).with_skip_micro_batch(true);
    let mut optim = sgd_under(at_scale(4096.0)).with_accumulation(rule);
    let messages = captured(Level::Info, || {
        optim.step(0.1, model.clone(), model.overflowing(4096.0));
    });
    let parts = ["micro-batch dropped", "matrix", "4096", "2048"];
    says(only(&messages), parts);
}

//! Gradients that are all zero: one warning, as `iterations.rs` shows it, wherever they come from.

use burn_amp_tests::{prelude::*, trial::*};

fn loss(value: f32) -> Tensor<1> {
    Tensor::from_floats([value], &Device::flex())
}

fn warnings(action: impl FnOnce()) -> Vec<String> {
    captured(Level::Warn, action)
}

/// A loss of an iteration may be scaled by a copy of the scaler, which each worker has.
#[test]
fn losses_of_several_optimizers_and_workers() {
    let mut run = ByHand::at(4096.0);
    let mut optims = [(); 2].map(|()| SgdConfig::new().init());
    let messages = warnings(|| {
        let worker = run.scaler.clone();
        std::thread::scope(|threads| {
            threads.spawn(move || drop(worker.scale(loss(1.0))));
        });
        for optim in &mut optims {
            let grads = run.scaler.scaled(run.model.plain([0.0; 10])).unwrap();
            let grads = run.scaler.unscale(grads, &run.model).unwrap();
            run.scaler.step(optim, 0.1, run.model.clone(), grads);
        }
        run.scaler.update().unwrap();
    });
    says(only(&messages), ["underflow"]);
}

/// At the border no loss is seen: what counts is the gradient that comes to it.
#[test]
fn gradients_that_are_lost_inside_a_scope_warn_once() {
    fn run<O: ModuleOptim>(optim: O, factor: f64) -> Vec<String> {
        let mut run = Trial::at_border_with(optim, &f16_under(at_scale(1.0)));
        warnings(|| {
            (0..3).for_each(|_| run.take(run.in_scope(factor)));
            run.optim.synchronize().unwrap();
        })
    }
    let burns = |factor| run(SgdConfig::new().init(), factor);
    let fused = |factor| run(FusedSgd::new(SgdConfig::new()), factor);
    for said in [burns(1e-9), fused(1e-9)] {
        says(only(&said), ["underflow"]);
    }
    for factor in [0.0, 1e-3] {
        for said in [burns(factor), fused(factor)] {
            assert_eq!(said, [""; 0], "{factor}");
        }
    }
}

/// Of several steps or windows with gradients of zero.
#[test]
fn the_scaled_optimizer_warns_too() {
    for (size, rule) in [(1, false), (2, false), (2, true)] {
        let optim = sgd_under(at_scale(4096.0));
        let mut run = Trial::new(optim.with_accumulation(windows(size, rule)));
        let messages = warnings(|| {
            for _ in 0..4 {
                // Multiplied by zero: the loss is the same whatever the parameters are.
                let loss = (run.model.bias.val() * 0.0).sum() + 1.0;
                run.take(run.backward(loss));
            }
        });
        says(only(&messages), ["4096"]);
    }
}

//! Gradients that are all zero: one warning, as `iterations.rs` shows it, wherever they come from.

use burn_amp_tests::{prelude::*, trial::*};

/// A loss of an iteration may be scaled by a copy of the scaler, which each worker has.
#[test]
fn losses_of_several_optimizers_and_workers() {
    let mut run = ByHand::at(4096.0);
    let mut optims = [(); 2].map(|()| SgdConfig::new().init());
    warns_once(["underflow"], || {
        let (worker, loss) = (run.scaler.clone(), Tensor::<1>::ones([1], &flex()));
        std::thread::scope(|threads| drop(threads.spawn(move || worker.scale(loss))));
        for optim in &mut optims {
            let grads = run.scaler.scaled(run.model.plain([0.0; 10])).unwrap();
            let grads = run.scaler.unscale(grads, &run.model).unwrap();
            run.scaler.step(optim, 0.1, run.model.clone(), grads);
        }
        run.scaler.update().unwrap();
    });
}

/// At the border no loss is seen: what counts is the gradient that comes to it.
#[test]
fn gradients_that_are_lost_inside_a_scope_warn_once() {
    fn run<O: ModuleOptim>(optim: O, factor: f64) -> Vec<String> {
        let mut run = Trial::at_border_with(optim, &f16_under(at_scale(1.0)));
        captured(Level::Warn, || {
            (0..3).for_each(|_| run.take(run.in_scope(factor)));
            run.optim.synchronize().unwrap();
        })
    }
    for (factor, warnings) in [(1e-9, 1), (0.0, 0), (1e-3, 0)] {
        let burns = run(SgdConfig::new().init(), factor);
        for said in [burns, run(FusedSgd::new(SgdConfig::new()), factor)] {
            assert_eq!(said.len(), warnings, "{factor}: {said:?}");
            assert!(said.iter().all(|said| said.contains("underflow")));
        }
    }
}

/// Of several steps or windows with gradients of zero.
#[test]
fn the_scaled_optimizer_warns_too() {
    for (size, rule) in [(1, false), (2, false), (2, true)] {
        let optim = sgd_under(at_scale(4096.0));
        let mut run = Trial::new(optim.with_accumulation(windows(size, rule)));
        warns_once(["underflow", "4096"], || {
            for _ in 0..4 {
                // Multiplied by zero: the loss is the same whatever the parameters are.
                let loss = (run.model.bias.val() * 0.0).sum() + 1.0;
                run.take(run.backward(loss));
            }
        });
    }
}

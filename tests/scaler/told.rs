//! Each call tells what it has done.

use super::support::*;

#[test]
fn each_call_tells_what_it_has_done() {
    let model = Model::new();
    let told = |optim: &ScaledOptimizer| optim.scaler().last_outcome();
    let window = AccumulationConfig::new(2).with_skip_micro_batch(true);
    let mut optim = sgd_under(at_scale(1024.0)).with_accumulation(window);
    assert_eq!(told(&optim), None);
    let scale = 1024.0;
    for (overflow, outcome) in [
        (false, StepOutcome::Accumulated),
        (false, StepOutcome::Stepped),
        (true, StepOutcome::Dropped),
    ] {
        optim.step(0.1, model.clone(), model.scaled(scale, overflow));
        assert_eq!(told(&optim), Some(outcome));
        assert!(optim.scaler().last_status().is_some());
    }
    optim.flush(0.1, model.clone());
    assert_eq!(told(&optim), Some(StepOutcome::NoGradients));
    assert!(optim.scaler().last_status().is_none());
    optim.discard(model.clean(512.0)).unwrap();
    assert_eq!(told(&optim), Some(StepOutcome::Dropped));

    // A call that is refused has done nothing, and tells nothing of the one before.
    let result = optim.try_step(f64::NAN, model.clone(), model.clean(512.0));
    assert!(result.is_err());
    assert_eq!(told(&optim), None);

    // Nor does one that ends the run for gradients that were dropped before.
    let clean = || (model.clone(), model.clean(scale));
    let ending: [&dyn Fn(&mut ScaledOptimizer) -> bool; 3] = [
        &|optim| optim.try_step(0.1, clean().0, clean().1).is_err(),
        &|optim| optim.try_flush(0.1, clean().0).is_err(),
        &|optim| optim.discard(clean().1).is_err(),
    ];
    for ends in ending {
        let mut optim = sgd_under(at_scale(1024.0).with_max_consecutive_skips(Some(0)));
        optim.step(0.1, model.clone(), model.clean(scale));
        drop(optim.unscale(model.overflowing(scale), &model).unwrap());
        assert!(ends(&mut optim));
        assert_eq!(told(&optim), None);
    }

    // What is returned is what is told.
    let mut alone = scaler(64.0);
    let nothing = unscaled(&alone, GradientsParams::new(), &model);
    assert_eq!(alone.observe(&nothing).unwrap(), StepOutcome::NoGradients);
    assert_eq!(alone.last_outcome(), Some(StepOutcome::NoGradients));

    let mut optim = sgd_under(at_scale(1024.0));
    optim.step(0.1, model.clone(), model.overflowing(scale));
    assert_eq!(told(&optim), Some(StepOutcome::Skipped));
    optim.step(0.1, model.clone(), GradientsParams::new());
    assert_eq!(told(&optim), Some(StepOutcome::NoGradients));
}

/// In a window that is tested as a whole nothing is known of a micro-batch.
#[test]
fn the_status_is_that_of_the_call() {
    let model = Model::new();
    let mut optim = sgd_under(at_scale(1024.0)).with_accumulation(2);
    for _ in 0..2 {
        let model = optim.step(0.1, model.clone(), model.clean(1024.0));
        assert!(optim.scaler().last_status().is_none());
        optim.step(0.1, model.clone(), model.overflowing(1024.0));
        assert!(optim.scaler().last_status().unwrap().has_overflow());
    }
}

//! Gradients that are thrown away.

use burn_amp_tests::prelude::*;

use crate::support::{Pair, pack, sgd};

fn clean(model: &Pair, scale: f32) -> ScaledGradients {
    model.gradients([1.0; 6], [1.0; 4], scale)
}

fn bad(model: &Pair, scale: f32) -> ScaledGradients {
    model.gradients([f32::NAN; 6], [1.0; 4], scale)
}

#[test]
fn gradients_that_nobody_has_tested_leave_no_trace_but_the_count() {
    let mut optim = sgd().with_ema(EmaConfig::new()).unwrap();
    let mut model = Pair::zeros(DType::F32);
    model = optim.step(1.0, model.clone(), clean(&model, 1024.0));
    let mut twin = optim.clone();

    optim.discard(bad(&model, 1024.0)).unwrap();
    optim.discard(clean(&model, 1024.0)).unwrap();
    // Burn's own, which are unscaled.
    optim.discard(bad(&model, 1.0).into_params()).unwrap();
    assert_eq!(optim.scaler().counters().discarded(), 3);
    assert_eq!(optim.scaler().schedule(), twin.scaler().schedule());
    assert_eq!(optim.scaler().counters().steps(), 1);
    assert_eq!(optim.ema().unwrap().updates(), 1);

    // And the run goes on as if nothing had been.
    let left = optim.step(1.0, model.clone(), clean(&model, 1024.0));
    let right = twin.step(1.0, model.clone(), clean(&model, 1024.0));
    assert_eq!(left.values(), right.values());
    assert_eq!(optim.scaler().schedule(), twin.scaler().schedule());
}

#[test]
fn what_was_unscaled_teaches_the_scale() {
    let mut optim = sgd();
    let model = Pair::zeros(DType::F32);
    let grads = optim.unscale(bad(&model, 1024.0), &model).unwrap();
    optim.discard(grads).unwrap();
    assert_eq!(optim.scaler().loss_scale(), 512.0);
    for _ in 0..2 {
        let grads = optim.unscale(clean(&model, 512.0), &model).unwrap();
        optim.discard(grads).unwrap();
    }
    assert_eq!(optim.scaler().loss_scale(), 1024.0);
    let counters = optim.scaler().counters();
    assert_eq!((counters.steps(), counters.discarded()), (0, 3));
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Dropped));
}

#[test]
fn with_a_scaler_the_update_is_one_for_all() {
    let config = GradScalerConfig::new().with_init_scale(64.0);
    let mut scaler = config.init().unwrap();
    let mut optim = SgdConfig::new().init();
    let model = Pair::zeros(DType::F32);
    // One is thrown away, and its overflow counts beside the clean step.
    let thrown = scaler.unscale(bad(&model, 64.0), &model).unwrap();
    scaler.discard(thrown).unwrap();
    let grads = scaler.unscale(clean(&model, 64.0), &model).unwrap();
    let model = scaler.step(&mut optim, 1.0, model, grads);
    assert_eq!(model.values(), [-1.0; 10]);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 32.0);
    // Nothing but a discarded one: no iteration.
    scaler.discard(clean(&model, 32.0)).unwrap();
    assert_eq!(scaler.update().unwrap(), None);
}

#[test]
fn a_disabled_scaler_counts_and_learns_nothing() {
    let mut scaler = GradScalerConfig::new().with_enabled(false).init().unwrap();
    let model = Pair::zeros(DType::F32);
    let grads = scaler.unscale(bad(&model, 1.0), &model).unwrap();
    scaler.discard(grads).unwrap();
    assert_eq!(scaler.update().unwrap(), None);
    assert_eq!(scaler.counters().discarded(), 1);
}

#[test]
fn counts_are_in_the_record_and_older_ones_lack_them() {
    let mut optim = sgd();
    let model = Pair::zeros(DType::F32);
    let state = |optim: &mut burn_amp::ScaledOptimizer<_>| {
        pack(optim.into_bytes().unwrap()).metadata["burn_amp.state"].clone()
    };
    assert!(!state(&mut optim).contains("discarded"));
    optim.discard(clean(&model, 1024.0)).unwrap();
    assert!(state(&mut optim).contains("\"discarded\":1"));
    let mut other = sgd();
    other.from_bytes(optim.into_bytes().unwrap()).unwrap();
    assert_eq!(other.scaler().counters(), optim.scaler().counters());
}

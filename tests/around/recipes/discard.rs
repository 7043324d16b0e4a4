//! Gradients that are thrown away.

use crate::support::*;

const BAD: Values = ([f32::NAN; 6], [1.0; 4]);

#[test]
fn gradients_that_nobody_has_tested_leave_no_trace_but_the_count() {
    let mut run = Trial::new(sgd().with_ema(EmaConfig::new()));
    run.step(all(1.0));
    let mut twin = run.clone();

    run.optim.discard(run.gradients(BAD)).unwrap();
    run.optim.discard(run.gradients(all(1.0))).unwrap();
    // Burn's own, which are unscaled.
    let plain = run.model.gradients(BAD, 1.0).into_params();
    run.optim.discard(plain).unwrap();
    assert_eq!(run.counters().discarded(), 3);
    let schedule = |run: &Trial| run.optim.scaler().schedule();
    assert_eq!(schedule(&run), schedule(&twin));
    assert_eq!(run.counters().steps(), 1);
    assert_eq!(run.optim.ema().unwrap().updates(), 1);

    // And the run goes on as if nothing had been.
    run.step(all(1.0));
    twin.step(all(1.0));
    assert_eq!(run.values(), twin.values());
    assert_eq!(schedule(&run), schedule(&twin));
}

#[test]
fn what_was_unscaled_teaches_the_scale() {
    let mut run = Trial::new(sgd());
    for (values, scale) in [(BAD, 512.0), (all(1.0), 512.0), (all(1.0), 1024.0)] {
        let grads = run.unscaled(values);
        run.optim.discard(grads).unwrap();
        assert_eq!(run.scale(), scale);
    }
    let counters = run.counters();
    assert_eq!((counters.steps(), counters.discarded()), (0, 3));
    assert_eq!(run.outcome(), Some(StepOutcome::Dropped));
}

#[test]
fn with_a_scaler_the_update_is_one_for_all() {
    let mut scaler = at_scale(64.0).init().unwrap();
    let mut optim = SgdConfig::new().init();
    let model = Pair::zeros(DType::F32);
    // One is thrown away, and its overflow counts beside the finite step.
    let thrown = scaler.unscale(model.gradients(BAD, 64.0), &model).unwrap();
    scaler.discard(thrown).unwrap();
    let grads = scaler
        .unscale(model.gradients(all(1.0), 64.0), &model)
        .unwrap();
    let model = scaler.step(&mut optim, 1.0, model, grads);
    assert_eq!(model.values(), [-1.0; 10]);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 32.0);
    // Nothing but a discarded one: no iteration.
    scaler.discard(model.gradients(all(1.0), 32.0)).unwrap();
    assert_eq!(scaler.update().unwrap(), None);
}

#[test]
fn a_disabled_scaler_counts_and_learns_nothing() {
    let mut scaler = GradScalerConfig::new().with_enabled(false).init().unwrap();
    let model = Pair::zeros(DType::F32);
    let grads = scaler.unscale(model.gradients(BAD, 1.0), &model).unwrap();
    scaler.discard(grads).unwrap();
    assert_eq!(scaler.update().unwrap(), None);
    assert_eq!(scaler.counters().discarded(), 1);
}

#[test]
fn counts_are_in_the_record_and_older_ones_lack_them() {
    let mut run = Trial::new(sgd());
    let state = |run: &mut Trial| run.record().metadata["burn_amp.state"].clone();
    assert!(!state(&mut run).contains("discarded"));
    run.optim.discard(run.gradients(all(1.0))).unwrap();
    assert!(state(&mut run).contains("\"discarded\":1"));
    let mut other = Trial::new(sgd());
    let bytes = run.optim.into_bytes().unwrap();
    other.optim.from_bytes(bytes).unwrap();
    assert_eq!(other.counters(), run.counters());
}

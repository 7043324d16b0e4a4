//! Gradients that are thrown away.

use crate::support::*;

#[test]
fn gradients_that_nobody_has_tested_leave_no_trace_but_the_count() {
    let mut run = Trial::new(sgd().with_ema(EmaConfig::new()));
    run.step(ONES);
    let mut twin = run.clone();
    run.optim.discard(run.scaled(BAD)).unwrap();
    run.optim.discard(run.scaled(ONES)).unwrap();
    // Burn's own, which are unscaled.
    run.optim.discard(run.model.plain(BAD)).unwrap();
    assert_eq!(run.counters().discarded(), 3);
    // And the run goes on as if nothing had been.
    for steps in [1, 2] {
        let [found, expected] = [&mut run, &mut twin].map(|run| {
            let updates = run.optim.ema().unwrap().updates();
            let state = (run.values(), run.optim.scaler().schedule(), updates);
            run.step(ONES);
            (state, run.counters().steps())
        });
        assert_eq!(found, expected);
        assert_eq!(found.1, steps + 1);
    }
}

#[test]
fn with_a_scaler_the_update_is_one_for_all() {
    let mut run = ByHand::of(Pair::of(0.0), at_scale(64.0));
    // One is thrown away, and its overflow counts beside the finite step.
    run.scaler.discard(run.unscaled(BAD)).unwrap();
    run.step(ONES).unwrap();
    assert_eq!(run.model.values(), [-1.0; 10]);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(run.scale(), 32.0);
    // Nothing but a discarded one: no iteration.
    run.scaler.discard(run.model.plain(ONES)).unwrap();
    assert_eq!(run.scaler.update().unwrap(), None);

    // A disabled scaler counts, and its scale stays.
    let disabled = GradScalerConfig::new().with_enabled(false);
    let mut run = ByHand::of(run.model, disabled);
    run.scaler.discard(run.unscaled(BAD)).unwrap();
    assert_eq!(run.scaler.update().unwrap(), None);
    assert_eq!(run.counters().discarded(), 1);
}

/// The book's recipe: what is too long is thrown away, in every precision.
#[test]
fn by_the_norm() {
    let f16 = f16_under(at_scale(8.0));
    for amp in [f16, MixedPrecision::bf16(), MixedPrecision::f32()] {
        let mut run = Trial::at_border(&amp);
        for factor in [1.0, 1000.0, 1.0] {
            let output = amp.autocast((), |()| run.model.bias.val());
            let grads = run.backward((output * factor).sum());
            let grads = run.optim.unscale(grads, &run.model).unwrap();
            match grads.status().norm() > 100.0 {
                true => run.optim.discard(grads).unwrap(),
                false => run.take(grads),
            }
        }
        let counters = run.counters();
        assert_eq!(
            (counters.stepped(), counters.discarded()),
            (2, 1),
            "{amp:?}"
        );
    }
}

#[test]
fn counts_are_in_the_record_and_older_ones_lack_them() {
    let mut run = Trial::new(sgd());
    let state = |run: &mut Trial| contents(&mut run.optim).metadata["burn_amp.state"].clone();
    assert!(!state(&mut run).contains("discarded"));
    run.optim.discard(run.scaled(ONES)).unwrap();
    assert!(state(&mut run).contains("\"discarded\":1"));
    let mut other = sgd();
    other.load_record(run.optim.to_record()).unwrap();
    assert_eq!(other.scaler().counters(), run.counters());
}

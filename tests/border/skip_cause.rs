//! The cause of a skip: a loss scale that was too high is lowered, one that is not the cause stays.

use crate::support::{graph::*, *};
use std::collections::VecDeque;

/// Graphs that any device computes alike.
pub const CASES: &str = "
infinite by design > fine > [ T masked ] first flat
the last that does not round to infinity > fine > [ T ] last
two exits > fine > [[ T ] flat + kept flat
a chain > fine > [ T ] square [ T ] flat
side by side > fine > [ T ] flat + [ T ] flat
the first that does > lowered > [ T ] beyond
where the gradient leaves f32 > lowered > [ T ] steep
deep inside > lowered > [ T deeper ] sum
infinite by design, too steep > lowered > [ T masked ] first steep
two exits, the second steep > lowered > [[ T ] flat + kept steep
two exits, the first steep > lowered > [[ T ] steep + kept flat
a chain, steep > lowered > [ T ] square [ T ] steep
a chain, steep in the second alone > lowered > [ T ] square [ T lifted ] flat
side by side, the first steep > lowered > [ T ] steep + [ T ] flat
side by side, the second steep > lowered > [ T ] flat + [ T ] steep
in a scope without a scale > bad > [f32 [ T ] ] nan
two exits, the second bad > bad > [[ T ] flat + kept nan
two exits, the first bad > bad > [[ T ] nan + kept flat
a chain, bad > bad > [ T ] square [ T ] nan
a chain, its output infinite > bad > large [ T ] square [ T ] flat
side by side, both bad > bad > [ T ] nan + [ T ] nan
side by side, the second output infinite > bad > [ T ] flat + large [ T ] square flat
side by side, the first output infinite > bad > large [ T ] square flat + [ T ] flat
";

#[test]
fn whose_fault_it_is() {
    for (name, expected, line) in cases(CASES) {
        let mut run = training();
        let before = numbers(&run.model);
        let skipped = step(&mut run, line);
        assert_eq!(skipped, numbers(&run.model) == before, "{name}");
        assert_eq!(ended(run), expected, "{name}");
    }
}

/// With a scaler, whose iteration the error of gradients that were dropped ends.
#[test]
fn an_iteration_ends_with_a_bad_loss_that_was_dropped() {
    let none = at_scale(SCALE).with_max_consecutive_skips(Some(0));
    let run = Player::new(net(), &f16_under(none));
    let (mut sgd, mut scaler) = (SgdConfig::new().init(), GradScaler::from(&run.amp));
    let tested = |scaler: &GradScaler, line: &str| {
        let grads = scaler.backward(loss(&run.amp, &run.model, line), &run.model);
        scaler.unscale(grads, &run.model).unwrap()
    };
    for _ in 0..2 {
        let grads = tested(&scaler, "[ T ] flat");
        scaler.step(&mut sgd, 0.01, run.model.clone(), grads);
        drop(tested(&scaler, "[ T ] nan"));
        is_error(&scaler.update().unwrap_err(), "LossNotFinite", []);
    }
}

#[test]
fn thirty_bad_batches_leave_the_scale() {
    let config = at_scale(SCALE).with_max_consecutive_skips(Some(29));
    for (bad, finite) in [("[ T ] nan", true), ("large [ T ] square flat", false)] {
        let mut run = Player::new(net(), &f16_under(config));
        // A finite step ends the row.
        for at in 1..60 {
            let line = if at == 30 { "[ T ] flat" } else { bad };
            assert_eq!(step(&mut run, line), at != 30);
            let counted = run.counters().bad_losses();
            assert_eq!((run.scale(), counted), (SCALE, at - u64::from(at >= 30)));
        }
        let error = run.try_step(0.01, pass(&run, bad)).unwrap_err();
        let expected = format!("LossNotFinite {{ skips: 30, output_finite: {finite}, ");
        is_error(&error, &expected, []);
        assert_eq!(error.to_string().contains("run that layer"), !finite);
        assert_eq!((run.scale(), run.counters().skipped()), (SCALE, 59));
    }
}

/// From the third in a row on.
#[test]
fn skips_in_a_row_are_warned_of() {
    let mut run = Player::new(net(), &f16(3.0 * two(20)));
    let mut warned = |line: &str, steps: usize| {
        let mut steps = (0..steps).map(|_| step(&mut run, line));
        captured(Level::Warn, || assert!(steps.all(|skipped| skipped)))
    };
    let wording = [(18, 3), (17, 4)].map(|(exponent, skips)| {
        let scale = 3.0 * two(exponent);
        format!("{skips} overflows in a row at loss scale {scale}")
    });
    assert_eq!(warned("[ T ] steep", 4), wording);
    // A bad loss names its cause.
    let bad = warned("[ T ] nan", 3).concat();
    says(&bad, ["of the loss is infinite or NaN, 3 in a row"]);
}

/// A window of Burn's own accumulator, which knows nothing of scales, of micro-batches with so many scopes more: the sum shows what one of them has
/// done, whether or not all forward passes come first.
pub fn assert_windows(micro_batches: usize, more: usize, at: usize, forward_first: bool) {
    for (odd, expected) in [("flat", FINE), ("steep", LOWERED), ("nan", BAD)] {
        let (mut run, mut sum) = (training(), GradientsAccumulator::new());
        let forward = |micro| {
            let line = format!("[ L ] {}", if micro == at { odd } else { "flat" });
            let line = line + &" + [ T ] flat".repeat(more);
            loss(&run.amp, &run.model, &line)
        };
        let first = if forward_first { micro_batches } else { 0 };
        let mut queued: VecDeque<Tensor<1>> = (0..first).map(forward).collect();
        for micro in 0..micro_batches {
            let loss = queued.pop_front().unwrap_or_else(|| forward(micro));
            sum.accumulate(&run.model, run.gradients(loss));
        }
        let case = format!("{odd} at {at}, {forward_first}");
        let warned = captured(Level::Warn, || _ = run.step(0.01, sum.grads()));
        assert!(!warned.concat().contains("never tested"), "{warned:?}");
        assert_eq!(outcome_of(&run.amp, run.counters()), expected, "{case}");
        // And the next window is a fresh one.
        assert!(!step(&mut run, "[ T ] flat"), "{case}");
        assert_eq!(ended(run), expected, "{case}");
    }
}

#[test]
fn micro_batches_in_burns_accumulator() {
    for at in 0..4 {
        assert_windows(4, 0, at, false);
        assert_windows(4, 0, at, true);
    }
}

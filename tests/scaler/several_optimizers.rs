//! Several optimizers under one scaler: each skips by its own gradients, and the scale moves once.

use burn_amp_tests::{prelude::*, trial::*};

/// A model and its optimizer.
type Player = (Pair, ModuleOptimizer);

/// One step; whether the parameters moved.
fn step(scaler: &mut GradScaler, (model, optim): &mut Player, overflow: bool) -> bool {
    let grads = model.scaled(values_that(overflow), scaler.loss_scale());
    let grads = scaler.unscale(grads, model).unwrap();
    let stepped = scaler.step(optim, 0.1, model.clone(), grads);
    std::mem::replace(model, stepped).values() != model.values()
}

/// Plays iterations, in which the generator (g) or the critic (c) steps, with an overflow (x) or not (.). After each: the scale, steps, skips,
/// and skips in a row.
fn play(iterations: &str) -> String {
    let mut scaler = at_scale(65536.0).with_growth_interval(2).init().unwrap();
    // Whose parameters have the same ids, as those of a target network and the one that it follows.
    let optimizers = [AdamConfig::new().init(), SgdConfig::new().init()];
    let mut players = optimizers.map(|optim| (Pair::of(0.0), optim));
    let played = iterations.split(' ').map(|steps| {
        let before = scaler.loss_scale();
        for call in steps.as_bytes().chunks(2) {
            let (player, overflow) = (usize::from(call[0] == b'c'), call[1] == b'x');
            assert_eq!(step(&mut scaler, &mut players[player], overflow), !overflow);
            assert_eq!(scaler.last_outcome(), Some(outcome(overflow)), "{steps}");
            // The scale moves in `update` only.
            assert_eq!(scaler.loss_scale(), before, "{steps}");
        }
        // A skip outweighs a finite step that followed it.
        let expected = outcome(steps.contains('x'));
        assert_eq!(scaler.update().unwrap(), Some(expected), "{steps}");
        let (scale, found) = (scaler.loss_scale(), scaler.counters());
        let (skipped, row) = (found.skipped(), found.consecutive_skips());
        format!("{scale}:{}-{skipped}-{row}", found.steps())
    });
    played.collect::<Vec<_>>().join(" ")
}

/// Two overflows in one iteration back off once, and a finite one counts once towards growth, whether the generator steps in each or not.
#[test]
fn each_skips_by_its_own_gradients_and_the_scale_moves_once() {
    for (iterations, expected) in [
        ("gxc. c.gx gxcx", "32768:2-1-1 16384:4-2-2 8192:6-4-3"),
        ("c.g. c.g. c.g.", "65536:2-0-0 131072:4-0-0 131072:6-0-0"),
        ("c. c.g. c.", "65536:1-0-0 131072:3-0-0 131072:4-0-0"),
    ] {
        assert_eq!(play(iterations), expected);
    }
}

#[test]
fn the_log_names_the_overflow_of_every_optimizer() {
    let mut run = ByHand::at(64.0);
    let other = [LinearConfig::new(2, 2).init(&flex())];
    let messages = captured(Level::Info, || {
        run.step(BAD).unwrap();
        let grads = gradients(&other, 0, f32::NAN, FloatDType::F32);
        let grads = scaled_by_hand(&run.scaler, grads);
        let grads = run.scaler.unscale(grads, &other).unwrap();
        let mut sgd = SgdConfig::new().init();
        run.scaler.step(&mut sgd, 0.1, other, grads);
        run.scaler.update().unwrap();
    });
    let expected = "step skipped: gradients overflow, first in `bias` and in `0.weight`, at loss scale 64, next 32";
    assert_eq!(messages, [expected]);
}

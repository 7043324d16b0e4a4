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

/// A generator and a critic, whose parameters have the same ids, as those of a target network and the one that it follows.
fn setup() -> (GradScaler, [Player; 2]) {
    let ByHand { scaler, model, .. } = ByHand::new(at_scale(65536.0).with_growth_interval(2));
    let optimizers = [AdamConfig::new().init(), SgdConfig::new().init()];
    (scaler, optimizers.map(|optim| (model.clone(), optim)))
}

#[test]
fn each_skips_by_its_own_gradients() {
    let (mut scaler, mut players) = setup();
    // Who steps, and with an overflow or not; the scale after it, and steps, skips and skips in a row.
    for (steps, scale, counts) in [
        ([(0, true), (1, false)], 32768.0, (2, 1, 1)),
        ([(1, false), (0, true)], 16384.0, (4, 2, 2)),
        // Two overflows in one iteration back off once.
        ([(0, true), (1, true)], 8192.0, (6, 4, 3)),
    ] {
        let before = scaler.loss_scale();
        for (player, overflow) in steps {
            assert_eq!(step(&mut scaler, &mut players[player], overflow), !overflow);
            assert_eq!(scaler.last_outcome(), Some(outcome(overflow)), "{steps:?}");
            // The scale moves in `update` only.
            assert_eq!(scaler.loss_scale(), before, "{steps:?}");
        }
        // The skip outweighs a finite step that followed it.
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
        assert_eq!(scaler.loss_scale(), scale, "{steps:?}");
        let found = scaler.counters();
        let found = (found.steps(), found.skipped(), found.consecutive_skips());
        assert_eq!(found, counts, "{steps:?}");
    }
    assert!(players[0].1.to_record().is_empty());
}

/// Whether the generator steps in every iteration, or in every other one only.
#[test]
fn clean_iterations_count_once_towards_growth() {
    for every in [1, 2] {
        let (mut scaler, [mut generator, mut critic]) = setup();
        let scales = [65536.0, 131072.0, 131072.0, 262144.0];
        for (iteration, expected) in scales.into_iter().enumerate() {
            assert!(step(&mut scaler, &mut critic, false));
            if (iteration + 1).is_multiple_of(every) {
                assert!(step(&mut scaler, &mut generator, false));
            }
            assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
            assert_eq!(scaler.loss_scale(), expected);
        }
        assert_eq!(scaler.counters().steps(), 4 + 4 / every as u64);
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

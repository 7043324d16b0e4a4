//! Several optimizers under one scaler: each skips by its own gradients, and the scale moves once.

use super::support::*;

/// A model and its optimizer.
type Player = (Model, ModuleOptimizer);

/// One step; whether the parameters moved.
fn step(scaler: &mut GradScaler, (model, optim): &mut Player, overflow: bool) -> bool {
    let grads = model.scaled(scaler.loss_scale(), overflow);
    let grads = scaler.unscale(grads, model).unwrap();
    let before = model.values();
    *model = scaler.step(optim, 0.1, model.clone(), grads);
    before != model.values()
}

/// A generator and a critic.
fn setup() -> (GradScaler, [Player; 2]) {
    let config = GradScalerConfig::new().with_growth_interval(2);
    let optimizers = [AdamConfig::new().init(), SgdConfig::new().init()];
    let players = optimizers.map(|optim| (Model::new(), optim));
    (config.init().unwrap(), players)
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
            let outcome = burn_amp_tests::outcome(overflow);
            assert_eq!(scaler.last_outcome(), Some(outcome), "{steps:?}");
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

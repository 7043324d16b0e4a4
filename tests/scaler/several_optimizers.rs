//! Several optimizers under one scaler: each skips by its own gradients, and the scale moves once.

use burn_amp_tests::prelude::*;

use crate::support::Model;

struct Player {
    model: Model,
    optim: ModuleOptimizer,
}

impl Player {
    /// One step; whether the parameters moved.
    fn step(&mut self, scaler: &mut GradScaler, overflow: bool) -> bool {
        let grads = self.model.scaled(scaler.loss_scale(), overflow);
        let grads = scaler.unscale(grads, &self.model).unwrap();
        let before = self.model.values();
        self.model = scaler.step(&mut self.optim, 0.1, self.model.clone(), grads);
        before != self.model.values()
    }
}

fn setup() -> (GradScaler, Player, Player) {
    let config = GradScalerConfig::new().with_growth_interval(2);
    let of = |optim| Player {
        model: Model::new(),
        optim,
    };
    let generator = of(AdamConfig::new().init());
    (
        config.init().unwrap(),
        generator,
        of(SgdConfig::new().init()),
    )
}

#[test]
fn each_skips_by_its_own_gradients() {
    let (mut scaler, mut generator, mut critic) = setup();
    assert!(!generator.step(&mut scaler, true));
    assert_eq!(scaler.last_outcome(), Some(StepOutcome::Skipped));
    assert!(critic.step(&mut scaler, false));
    assert_eq!(scaler.last_outcome(), Some(StepOutcome::Stepped));
    assert!(generator.optim.to_record().is_empty());
    // The scale moves in `update` only, and the skip outweighs the clean step that followed it.
    assert_eq!(scaler.loss_scale(), 65536.0);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 32768.0);
    let counters = scaler.counters();
    assert_eq!((counters.steps(), counters.skipped()), (2, 1));
    assert_eq!(counters.consecutive_skips(), 1);

    assert!(critic.step(&mut scaler, false));
    assert!(!generator.step(&mut scaler, true));
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 16384.0);
    assert_eq!(scaler.counters().consecutive_skips(), 2);

    // Two overflows in one iteration back off once.
    assert!(!generator.step(&mut scaler, true));
    assert!(!critic.step(&mut scaler, true));
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 8192.0);
    let counters = scaler.counters();
    assert_eq!((counters.steps(), counters.skipped()), (6, 4));
    assert_eq!(counters.consecutive_skips(), 3);
}

/// Whether the generator steps in every iteration, or in every other one only.
#[test]
fn clean_iterations_count_once_towards_growth() {
    for every in [1, 2] {
        let (mut scaler, mut generator, mut critic) = setup();
        let scales = [65536.0, 131072.0, 131072.0, 262144.0];
        for (iteration, expected) in scales.into_iter().enumerate() {
            assert!(critic.step(&mut scaler, false));
            if (iteration + 1).is_multiple_of(every) {
                assert!(generator.step(&mut scaler, false));
            }
            assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
            assert_eq!(scaler.loss_scale(), expected);
        }
        assert_eq!(scaler.counters().steps(), 4 + 4 / every as u64);
    }
}

//! Several optimizers under one scaler: each skips by its own gradients, and the scale moves once.

use burn_amp_tests::prelude::*;

use crate::support::Model;

struct Player {
    model: Model,
    optim: ModuleOptimizer,
}

impl Player {
    fn new(optim: ModuleOptimizer) -> Self {
        let model = Model::new();
        Self { model, optim }
    }

    /// One step; whether the parameters moved.
    fn step(&mut self, scaler: &mut GradScaler, overflow: bool) -> bool {
        let scale = scaler.loss_scale();
        let grads = self.model.scaled(scale, overflow);
        let grads = scaler.unscale(grads, &self.model).unwrap();
        let before = self.model.values();
        self.model = scaler.step(&mut self.optim, 0.1, self.model.clone(), grads);
        before != self.model.values()
    }
}

fn setup() -> (GradScaler, Player, Player) {
    let config = GradScalerConfig::new().with_growth_interval(2);
    let generator = Player::new(AdamConfig::new().init());
    let critic = Player::new(SgdConfig::new().init());
    (config.init().unwrap(), generator, critic)
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
}

#[test]
fn two_overflows_in_one_iteration_back_off_once() {
    let (mut scaler, mut generator, mut critic) = setup();
    assert!(!generator.step(&mut scaler, true));
    assert!(!critic.step(&mut scaler, true));
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 32768.0);
    let counters = scaler.counters();
    assert_eq!((counters.steps(), counters.skipped()), (2, 2));
    assert_eq!(counters.consecutive_skips(), 1);
}

#[test]
fn clean_iterations_count_once_towards_growth() {
    let (mut scaler, mut generator, mut critic) = setup();
    for expected in [65536.0, 131072.0, 131072.0, 262144.0] {
        assert!(generator.step(&mut scaler, false));
        assert!(critic.step(&mut scaler, false));
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
        assert_eq!(scaler.loss_scale(), expected);
    }
    assert_eq!(scaler.counters().steps(), 8);
}

/// As with a generator that is stepped every other iteration only.
#[test]
fn not_every_optimizer_steps_in_every_iteration() {
    let (mut scaler, mut generator, mut critic) = setup();
    for iteration in 0..4 {
        assert!(critic.step(&mut scaler, false));
        if iteration % 2 == 1 {
            assert!(generator.step(&mut scaler, false));
        }
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
    }
    assert_eq!(scaler.loss_scale(), 4.0 * 65536.0);
    assert_eq!(scaler.counters().steps(), 6);
}

//! Several optimizers on one `MixedPrecision`: one loss scale, which moves once an iteration.

use crate::support::*;

/// Finite, and too large for f16 once it is multiplied by a scale of this file.
const OVERFLOW: f32 = 1e9;

fn amp(growth_interval: u32) -> MixedPrecision {
    let config = at_scale(1024.0).with_growth_interval(growth_interval);
    MixedPrecision::f16().with_scaler(config).unwrap()
}

impl Player {
    fn step(&mut self, loss: Tensor<1>) -> StepOutcome {
        self.step_on(self.gradients(loss))
    }

    fn step_on(&mut self, grads: GradientsParams) -> StepOutcome {
        self.step_at(0.1, grads);
        self.optim.scaler().last_outcome().unwrap()
    }

    /// Forward, backward and step; whether it was not skipped.
    fn train(&mut self, factor: f32) -> bool {
        self.step(self.loss(factor)).is_stepped()
    }

    fn tracker(&self) -> u32 {
        self.optim.scaler().growth_tracker()
    }

    fn counters(&self) -> StepCounters {
        self.optim.scaler().counters()
    }
}

/// Two on one scale.
fn pair(amp: &MixedPrecision) -> [Player; 2] {
    [Player::new(amp), Player::new(amp)]
}

/// The scale fits the larger gradients of the two, whichever comes first.
#[test]
fn a_schedule_sees_the_gradients_of_all_optimizers() {
    for factors in [[1.0, 64.0], [64.0, 1.0], [64.0, 64.0]] {
        let config = at_scale(64.0);
        let config = config.with_schedule(Schedule::log_max());
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let mut players = factors.map(|_| Player::new(&amp));
        for _ in 0..20 {
            for (player, factor) in players.iter_mut().zip(factors) {
                assert!(player.train(factor));
            }
        }
        // A gradient of 32, which is 65536 at 2048.
        assert_eq!(amp.loss_scale(), 1024.0, "{factors:?}");
    }
}

/// As in a GAN whose losses come from one forward pass: all graphs are of one scale, and nobody is warned of scopes that are missing.
#[test]
fn losses_of_one_forward_pass_are_one_iteration() {
    let amp = amp(4);
    let [mut first, mut second] = pair(&amp);
    let logged = warnings(|| {
        for scale in [[1024.0; 4], [2048.0; 4]].concat() {
            assert_eq!(amp.loss_scale(), scale);
            let losses = (first.loss(1.0), second.loss(1.0));
            assert!(first.step(losses.0).is_stepped());
            assert!(second.step(losses.1).is_stepped());
        }
    });
    assert_eq!(amp.loss_scale(), 4096.0);
    assert_eq!(logged, [""; 0]);
}

#[test]
fn an_overflow_in_either_or_in_both_halves_the_scale_once() {
    for overflows in [[true, false], [false, true], [true, true]] {
        let amp = amp(100);
        let mut players = pair(&amp);
        for player in &mut players {
            assert!(player.train(1.0));
        }
        let factor = overflows.map(|overflow| if overflow { OVERFLOW } else { 1.0 });
        let losses = [0, 1].map(|index: usize| players[index].loss(factor[index]));
        for ((player, loss), overflow) in players.iter_mut().zip(losses).zip(overflows) {
            let before = player.model.weight.val().to_data();
            assert_eq!(player.step(loss).is_skipped(), overflow, "{overflows:?}");
            // Each is skipped for its own gradients alone.
            let same = player.model.weight.val().to_data() == before;
            assert_eq!(same, overflow, "{overflows:?}");
            let skipped = player.counters().skipped();
            assert_eq!(skipped, u64::from(overflow), "{overflows:?}");
        }
        assert_eq!(amp.loss_scale(), 512.0, "{overflows:?}");
        let trackers = players.each_ref().map(Player::tracker);
        assert_eq!(trackers, [0; 2], "{overflows:?}");
        // The next iteration is one of its own.
        for player in &mut players {
            assert!(player.train(1.0));
        }
        assert_eq!(players[0].tracker(), 1);
        assert!(!players[0].train(OVERFLOW));
        assert_eq!(amp.loss_scale(), 256.0);
    }
}

/// The scale must not wait for a generator that steps once in five.
#[test]
fn one_may_step_more_often_than_the_other() {
    let amp = amp(1000);
    let [mut critic, mut generator] = pair(&amp);
    for iteration in 1..=4 {
        for _ in 0..5 {
            assert!(critic.train(1.0));
        }
        assert!(generator.train(1.0));
        // The fifth step of the critic and the generator's are one iteration.
        assert_eq!(critic.tracker(), 5 * iteration);
    }
    // Every overflow of a step of its own lowers the scale.
    for scale in [512.0, 256.0, 128.0] {
        assert!(!critic.train(OVERFLOW));
        assert_eq!(amp.loss_scale(), scale);
    }
    assert!(generator.train(1.0));
    assert_eq!((amp.loss_scale(), generator.tracker()), (128.0, 0));
}

/// Nor is a clone that is kept aside (for a checkpoint, or to go back to).
#[test]
fn a_dropped_optimizer_is_not_waited_for() {
    let amp = amp(100);
    let [mut left, mut dropped] = pair(&amp);
    assert!(left.train(1.0) && dropped.train(1.0));
    assert_eq!(left.tracker(), 1);
    drop(dropped);
    let kept = left.clone();
    for iteration in 2..6 {
        assert!(left.train(1.0));
        assert_eq!(left.tracker(), iteration);
    }
    assert_eq!(kept.counters().steps(), 1);
}

/// A loss that is not finite says nothing of the scale, and holds no one up.
#[test]
fn a_loss_that_is_not_finite_is_nobody_elses_concern() {
    let amp = amp(100);
    let [mut first, mut second] = pair(&amp);
    for iteration in 1..=3 {
        assert!(!first.train(f32::NAN));
        assert!(second.train(1.0));
        assert_eq!((amp.loss_scale(), second.tracker()), (1024.0, iteration));
    }
    assert_eq!(first.counters().bad_losses(), 3);
    assert_eq!(second.counters().skipped(), 0);
}

/// Where both backward passes are over before one steps, each skip is blamed on what is to blame.
#[test]
fn two_losses_that_are_not_finite_leave_the_scale() {
    for (factor, scale, bad) in [(f32::NAN, 1024.0, 1), (OVERFLOW, 512.0, 0)] {
        let amp = amp(100);
        let mut players = pair(&amp);
        let backward = |player: &Player| player.gradients(player.loss(factor));
        let grads = players.each_ref().map(backward);
        for (player, grads) in players.iter_mut().zip(grads) {
            assert!(player.step_on(grads).is_skipped());
            assert_eq!(amp.loss_scale(), scale);
            assert_eq!(player.counters().bad_losses(), bad);
        }
        // Nor is what was read held against the next iteration.
        let mut again = |factor: f32| players.each_mut().map(|player| player.train(factor));
        assert_eq!(again(1.0), [true, true]);
        assert_eq!(again(OVERFLOW), [false, false]);
        // The second forward pass was at the lowered scale, and is of the same iteration.
        assert_eq!(amp.loss_scale(), scale / 2.0);
    }
}

/// What was thrown away is the cause of no later skip, nor is an open window that is dropped.
#[test]
fn discarded_gradients_explain_no_later_skip() {
    for (discarded, factor, scale, bad) in [
        (OVERFLOW, f32::NAN, 1024.0, 1),
        (f32::NAN, OVERFLOW, 512.0, 0),
    ] {
        for window in [1, 2] {
            let amp = amp(100);
            let mut player = Player::new(&amp);
            player.optim = player.optim.with_accumulation(window);
            let grads = player.gradients(player.loss(discarded));
            if window == 1 {
                player.optim.discard(grads).unwrap();
            } else {
                player.step_on(grads);
                player.optim.drop_window();
                player.step(player.loss(1.0));
            }
            assert!(!player.train(factor));
            let counters = player.counters();
            assert_eq!(
                (amp.loss_scale(), counters.bad_losses()),
                (scale, bad),
                "{window}"
            );
        }
    }
}

/// A micro-batch that waits in a window for its test is not forgotten with one that is discarded.
#[test]
fn a_micro_batch_explains_the_skip_of_its_window() {
    let amp = amp(100);
    let mut player = Player::new(&amp);
    player.optim = player.optim.with_accumulation(2);
    player.step(player.loss(f32::NAN));
    let grads = player.gradients(player.loss(OVERFLOW));
    player.optim.discard(grads).unwrap();
    assert!(!player.train(1.0));
    let counters = player.counters();
    assert_eq!((amp.loss_scale(), counters.bad_losses()), (1024.0, 1));
}

/// A second forward pass in an iteration is at the lowered scale of the first already.
#[test]
fn a_state_that_is_loaded_is_that_of_all() {
    let amp = amp(100);
    let [mut first, mut second] = pair(&amp);
    assert!(!first.train(OVERFLOW));
    assert_eq!(amp.loss_scale(), 512.0);
    assert_eq!(second.optim.scaler().loss_scale(), 512.0);
    assert!(second.train(1.0));
    assert_eq!(amp.loss_scale(), 512.0);
    assert!(first.train(1.0) && second.train(1.0));
    let record = first.optim.to_record();
    for _ in 0..3 {
        assert!(!second.train(OVERFLOW));
    }
    assert_eq!(amp.loss_scale(), 64.0);
    first.optim.load_record(record).unwrap();
    assert_eq!((amp.loss_scale(), second.tracker()), (512.0, 1));
}

/// The warnings of some steps.
fn warnings(steps: impl FnOnce()) -> Vec<String> {
    captured(Level::Warn, steps)
}

/// Those of steps with or without a scope.
fn warned(player: &mut Player, scopes: &[bool]) -> Vec<String> {
    warnings(|| {
        for in_scope in scopes {
            let loss = match in_scope {
                true => player.loss(1.0),
                false => player.model.weight.val().mean(),
            };
            assert!(player.step(loss).is_stepped());
        }
    })
}

#[test]
fn an_optimizer_whose_handle_opens_no_scope_is_warned_of_once() {
    let mut player = Player::new(&amp(100));
    assert_eq!(warned(&mut player, &[true; 2]), [""; 0]);
    only(&warned(&mut player, &[false]));

    // As with two calls of `MixedPrecision::f16()`: the scopes are another's.
    player.optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp(100));
    let parts = [
        "no `autocast`",
        "`MixedPrecision`",
        "make one, and clone it",
    ];
    says(only(&warned(&mut player, &[true; 3])), parts);

    // In bf16 too, although it has no scale. WGSL has no bf16.
    for (amp, count) in [(MixedPrecision::bf16(), 1), (MixedPrecision::f32(), 0)] {
        if amp.check_device(&Device::default()).is_ok() {
            let logged = warned(&mut Player::new(&amp), &[false; 2]);
            assert_eq!(logged.len(), count, "{amp:?}: {logged:?}");
        }
    }
}

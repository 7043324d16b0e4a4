//! Several optimizers on one `MixedPrecision`: one loss scale, which moves once an iteration.

use crate::support::*;

/// Finite, and too large for f16 once it is multiplied by a scale of this file.
const OVERFLOW: f32 = 1e9;

fn amp(growth_interval: u32) -> MixedPrecision {
    let config = at_scale(1024.0).with_growth_interval(growth_interval);
    MixedPrecision::f16().with_scaler(config).unwrap()
}

/// Forward, backward and step; whether it was not skipped.
fn train(player: &mut Player, factor: f32) -> bool {
    !player.train(0.1, loss(player, factor))
}

fn tracker(player: &Player) -> u32 {
    player.optim.scaler().growth_tracker()
}

/// Two on one scale.
fn pair(amp: &MixedPrecision) -> [Player; 2] {
    [player(amp), player(amp)]
}

/// The scale fits the larger gradients of the two, whichever comes first.
#[test]
fn a_schedule_sees_the_gradients_of_all_optimizers() {
    for factors in [[1.0, 64.0], [64.0, 1.0], [64.0, 64.0]] {
        let config = at_scale(64.0);
        let config = config.with_schedule(Schedule::log_max());
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let mut players = factors.map(|_| player(&amp));
        for _ in 0..20 {
            for (player, factor) in players.iter_mut().zip(factors) {
                assert!(train(player, factor));
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
    let logged = captured(Level::Warn, || {
        for scale in [[1024.0; 4], [2048.0; 4]].concat() {
            assert_eq!(amp.loss_scale(), scale);
            let losses = (loss(&first, 1.0), loss(&second, 1.0));
            assert!(!first.train(0.1, losses.0));
            assert!(!second.train(0.1, losses.1));
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
            assert!(train(player, 1.0));
        }
        let factor = overflows.map(|overflow| if overflow { OVERFLOW } else { 1.0 });
        let losses = [0, 1].map(|index: usize| loss(&players[index], factor[index]));
        for ((player, loss), overflow) in players.iter_mut().zip(losses).zip(overflows) {
            let before = numbers(&player.model);
            let skipped = player.train(0.1, loss);
            // Each is skipped for its own gradients alone.
            let found = (
                skipped,
                numbers(&player.model) == before,
                player.counters().skipped(),
            );
            assert_eq!(
                found,
                (overflow, overflow, overflow.into()),
                "{overflows:?}"
            );
        }
        assert_eq!(amp.loss_scale(), 512.0, "{overflows:?}");
        let trackers = players.each_ref().map(tracker);
        assert_eq!(trackers, [0; 2], "{overflows:?}");
        // The next iteration is one of its own.
        for player in &mut players {
            assert!(train(player, 1.0));
        }
        assert_eq!(tracker(&players[0]), 1);
        assert!(!train(&mut players[0], OVERFLOW));
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
            assert!(train(&mut critic, 1.0));
        }
        assert!(train(&mut generator, 1.0));
        // The fifth step of the critic and the generator's are one iteration.
        assert_eq!(tracker(&critic), 5 * iteration);
    }
    // Every overflow of a step of its own lowers the scale.
    for scale in [512.0, 256.0, 128.0] {
        assert!(!train(&mut critic, OVERFLOW));
        assert_eq!(amp.loss_scale(), scale);
    }
    assert!(train(&mut generator, 1.0));
    assert_eq!((amp.loss_scale(), tracker(&generator)), (128.0, 0));
}

/// Nor is a clone that is kept aside (for a checkpoint, or to go back to).
#[test]
fn a_dropped_optimizer_is_not_waited_for() {
    let amp = amp(100);
    let [mut left, mut dropped] = pair(&amp);
    assert!(train(&mut left, 1.0) && train(&mut dropped, 1.0));
    assert_eq!(tracker(&left), 1);
    drop(dropped);
    let kept = left.clone();
    for iteration in 2..6 {
        assert!(train(&mut left, 1.0));
        assert_eq!(tracker(&left), iteration);
    }
    assert_eq!(kept.counters().steps(), 1);
}

/// A loss that is not finite says nothing of the scale, and holds no one up.
#[test]
fn a_loss_that_is_not_finite_is_nobody_elses_concern() {
    let amp = amp(100);
    let [mut first, mut second] = pair(&amp);
    for iteration in 1..=3 {
        assert!(!train(&mut first, f32::NAN));
        assert!(train(&mut second, 1.0));
        assert_eq!((amp.loss_scale(), tracker(&second)), (1024.0, iteration));
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
        let backward = |player: &Player| player.gradients(loss(player, factor));
        let grads = players.each_ref().map(backward);
        for (player, grads) in players.iter_mut().zip(grads) {
            assert!(player.step(0.1, grads));
            assert_eq!(amp.loss_scale(), scale);
            assert_eq!(player.counters().bad_losses(), bad);
        }
        // Nor is what was read held against the next iteration.
        let mut again = |factor: f32| players.each_mut().map(|player| train(player, factor));
        assert_eq!(again(1.0), [true, true]);
        assert_eq!(again(OVERFLOW), [false, false]);
        // The second forward pass was at the lowered scale, and is of the same iteration.
        assert_eq!(amp.loss_scale(), scale / 2.0);
    }
}

/// What was thrown away is the cause of no later skip, nor is an open window that is dropped. But a micro-batch that waits in a window
/// for its test is not forgotten with one that is discarded.
#[test]
fn discarded_gradients_explain_no_later_skip() {
    const NAN: f32 = f32::NAN;
    // One is thrown away, or a window with it; or the first waits while the second is thrown away.
    for (way, first, second, scale, bad) in [
        ("discard", OVERFLOW, NAN, 1024.0, 1),
        ("discard", NAN, OVERFLOW, 512.0, 0),
        ("drop", OVERFLOW, NAN, 1024.0, 1),
        ("drop", NAN, OVERFLOW, 512.0, 0),
        ("keep", NAN, OVERFLOW, 1024.0, 1),
    ] {
        let amp = amp(100);
        let mut player = player(&amp);
        let window = if way == "discard" { 1 } else { 2 };
        player.optim = player.optim.with_accumulation(window);
        let grads = player.gradients(loss(&player, first));
        match way {
            "discard" => player.optim.discard(grads).unwrap(),
            _ => assert!(!player.step(0.1, grads)),
        }
        let last = if way == "keep" {
            let grads = player.gradients(loss(&player, second));
            player.optim.discard(grads).unwrap();
            1.0
        } else {
            if way == "drop" {
                player.optim.drop_window();
                player.train(0.1, loss(&player, 1.0));
            }
            second
        };
        assert!(!train(&mut player, last));
        let found = (amp.loss_scale(), player.counters().bad_losses());
        assert_eq!(found, (scale, bad), "{way}");
    }
}

/// A second forward pass in an iteration is at the lowered scale of the first already.
#[test]
fn a_state_that_is_loaded_is_that_of_all() {
    let amp = amp(100);
    let [mut first, mut second] = pair(&amp);
    assert!(!train(&mut first, OVERFLOW));
    assert_eq!(amp.loss_scale(), 512.0);
    assert_eq!(second.optim.scaler().loss_scale(), 512.0);
    assert!(train(&mut second, 1.0));
    assert_eq!(amp.loss_scale(), 512.0);
    assert!(train(&mut first, 1.0) && train(&mut second, 1.0));
    let record = first.optim.to_record();
    for _ in 0..3 {
        assert!(!train(&mut second, OVERFLOW));
    }
    assert_eq!(amp.loss_scale(), 64.0);
    first.optim.load_record(record).unwrap();
    assert_eq!((amp.loss_scale(), tracker(&second)), (512.0, 1));
}

/// The warnings of steps with or without a scope.
fn warned(player: &mut Player, scopes: &[bool]) -> Vec<String> {
    captured(Level::Warn, || {
        for in_scope in scopes {
            let loss = match in_scope {
                true => loss(player, 1.0),
                false => player.model.weight.val().mean(),
            };
            assert!(!player.train(0.1, loss));
        }
    })
}

#[test]
fn an_optimizer_whose_handle_opens_no_scope_is_warned_of_once() {
    let mut one = player(&amp(100));
    assert_eq!(warned(&mut one, &[true; 2]), [""; 0]);
    only(&warned(&mut one, &[false]));

    // As with two calls of `MixedPrecision::f16()`: the scopes are another's.
    one.optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp(100));
    let warning = warned(&mut one, &[true; 3]);
    says(
        only(&warning),
        [
            "no `autocast`",
            "`MixedPrecision`",
            "make one, and clone it",
        ],
    );

    // In bf16 too, although it has no scale. WGSL has no bf16.
    for (amp, count) in [(MixedPrecision::bf16(), 1), (MixedPrecision::f32(), 0)] {
        if amp.check_device(&Device::default()).is_ok() {
            let logged = warned(&mut player(&amp), &[false; 2]);
            assert_eq!(logged.len(), count, "{amp:?}: {logged:?}");
        }
    }
}

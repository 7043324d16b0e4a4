//! Several optimizers on one `MixedPrecision`: one loss scale, which moves once an iteration. What two optimizers do whose passes come one
//! after another is in `tests/oracle`.

use crate::support::*;
use burn_amp_core::internal::Followed;

/// Finite, and too large for f16 once it is multiplied by a scale of this file.
const OVERFLOW: f32 = 1e9;

fn amp(growth_interval: u32) -> MixedPrecision {
    f16_under(at_scale(1024.0).with_growth_interval(growth_interval))
}

fn loss<O>(player: &One<O>, factor: f32) -> Tensor<1> {
    loss_of(&player.amp, &player.model, factor)
}

/// What a step has done: taken it (+), or skipped it for an overflow (-) or for a bad loss (?). Each is skipped for its own gradients alone.
fn step(player: &mut One, grads: GradientsParams) -> char {
    let (before, bad) = (numbers(&player.model), player.counters().bad_losses());
    let skipped = player.step(0.1, grads);
    assert_eq!(numbers(&player.model) == before, skipped);
    match player.counters().bad_losses() - bad {
        _ if !skipped => '+',
        0 => '-',
        _ => '?',
    }
}

/// Of a loss that is finite (.), overflows (!) or is NaN (?), as a call ends.
fn factor(call: impl AsRef<[u8]>) -> f32 {
    match call.as_ref().last() {
        Some(b'!') => OVERFLOW,
        Some(b'?') => f32::NAN,
        _ => 1.0,
    }
}

/// Plays groups of steps: player a's or b's, with a finite loss (.), an overflow (!) or a loss that is NaN (?). In a group all forward
/// passes come first, and after a `*` all backward passes, too. Returns of each group what its steps have done, the exponent of the scale
/// after it and the growth tracker.
fn play(players: &mut [One], script: &str) -> String {
    let group = |group: &str| {
        let calls = group.trim_start_matches('*').as_bytes().chunks(2);
        let calls = calls.map(|call| (usize::from(call[0] - b'a'), factor(call)));
        let forward = |(who, factor)| (who, loss(&players[who], factor));
        let losses: Vec<_> = calls.map(forward).collect();
        let (mut done, mut passes) = (String::new(), Vec::new());
        for (who, loss) in losses {
            passes.push((who, players[who].gradients(loss)));
            if !group.starts_with('*') || passes.len() == 2 {
                let passes = passes.drain(..);
                done.extend(passes.map(|(who, grads)| step(&mut players[who], grads)));
            }
        }
        let scaler = players[0].optim.scaler();
        let (exponent, tracker) = (scaler.loss_scale().log2(), scaler.growth_tracker());
        format!("{done}{exponent}:{tracker}")
    };
    script.split(' ').map(group).collect::<Vec<_>>().join(" ")
}

fn pair(amp: &MixedPrecision) -> Vec<One> {
    vec![one(amp), one(amp)]
}

#[test]
fn the_scale_moves_once_an_iteration() {
    for (script, expected) in [
        // As in a GAN whose losses come from one forward pass: all graphs are of one scale.
        ("a.b. a.b. a.b. a!b.", "++10:1 ++10:2 ++10:3 -+9:0"),
        // Where both backward passes are over before one steps, each skip has its own cause. Nor is what was read held against
        // the next iteration, whose second forward pass is at the lowered scale.
        ("*a?b? a. b. a! b!", "??10:0 +10:0 +10:1 -9:0 -9:0"),
        ("*a!b! a. b. a! b!", "--9:0 +9:0 +9:1 -8:0 -8:0"),
    ] {
        let logged = captured(Level::Warn, || {
            assert_eq!(play(&mut pair(&amp(100)), script), expected, "{script}");
        });
        // Missing scopes are not warned of.
        assert!(!logged.concat().contains("autocast"), "{logged:?}");
    }
}

/// One that is made to read the scale, or to set it. Growth comes as without it, and fused steps need not wait, as a captured one must not. Nor is
/// a clone waited for that is kept aside (for a checkpoint, or to go back to).
#[test]
fn a_scaler_that_tests_nothing_is_not_waited_for() {
    let amp = amp(1);
    let mut one = one_with(FusedSgd::new(SgdConfig::new()), &amp);
    let (mut looker, _kept) = (GradScaler::from(&amp), one.clone());
    for scale in [2048.0, 4096.0, 8192.0, 16384.0] {
        one.train(0.1, loss(&one, 0.001));
        one.optim.synchronize().unwrap();
        assert_eq!(looker.loss_scale(), scale);
    }
    let captures = || {
        let of = |model: &Linear, _: Tensor<2>| loss_of(&amp, model, 1.0);
        CapturedStep::new(one.model.clone(), one.optim.clone(), of).err()
    };
    looker.set_loss_scale(1024.0).unwrap();
    assert_eq!(captures(), None);
    // From the first gradients on that it tests, it is.
    drop(unscaled(&mut looker, &one.model, 0.001));
    let error = captures().unwrap();
    is_error(&error, "CannotCapture", ["several optimizers"]);
}

/// The gradients of a scaler's own loss.
fn unscaled(scaler: &mut GradScaler, model: &Linear, factor: f32) -> UnscaledGradients {
    let amp = scaler.precision().unwrap().clone();
    let grads = scaler.backward(loss_of(&amp, model, factor), model);
    scaler.unscale(grads, model).unwrap()
}

/// Two scalers, each with a loss of its own. The second begins when the first has ended an iteration: it belongs to that.
#[test]
fn scalers_that_begin_one_after_another_are_in_one_iteration() {
    let amp = amp(100);
    let (model, mut optim) = (one(&amp).model, SgdConfig::new().init());
    let mut scalers = [(); 2].map(|()| GradScaler::from(&amp));
    // The first iteration ends with each of them, because nobody knows of the second.
    for tracker in [2, 3, 4] {
        for scaler in &mut scalers {
            let grads = unscaled(scaler, &model, 0.001);
            scaler.step(&mut optim, 0.0, model.clone(), grads);
            scaler.update().unwrap();
        }
        assert_eq!(scalers[0].growth_tracker(), tracker);
    }
}

/// As metrics and schedulers see it.
#[test]
fn a_handle_shows_what_update_and_observe_have_done() {
    let amp = amp(100);
    let (model, mut optim) = (one(&amp).model, SgdConfig::new().init());
    let (mut scaler, mut read) = (GradScaler::from(&amp), 0);
    for call in ["step", "step", "observe", "update to"] {
        let factor = if call == "observe" { 0.001 } else { OVERFLOW };
        let grads = unscaled(&mut scaler, &model, factor);
        match call {
            "observe" => drop(scaler.observe(&grads).unwrap()),
            _ => drop(scaler.step(&mut optim, 0.0, model.clone(), grads)),
        }
        assert_eq!(amp.last_outcome(), scaler.last_outcome(), "{call}");
        match call {
            "update to" => scaler.update_to(64.0).unwrap(),
            _ => scaler.update().unwrap(),
        };
        assert_eq!(amp.counters(), scaler.counters(), "{call}");
        let (now, step) = Followed::from(&amp).step_after(read).unwrap();
        assert_eq!(step.loss_scale, f64::from(amp.loss_scale()), "{call}");
        read = now;
    }
    assert_eq!((read, amp.loss_scale()), (4, 64.0));
    // Those that were dropped before an update count with it.
    drop(unscaled(&mut scaler, &model, 1.0));
    scaler.update().unwrap();
    assert_eq!(amp.counters(), scaler.counters());
    assert_eq!(amp.counters().discarded(), 1);
}

/// A window that is replaced is the cause of no later skip. What is discarded or cleared, and what another optimizer has done between, is in
/// `tests/oracle`.
#[test]
fn a_window_that_was_replaced_explains_no_later_skip() {
    // Gradients of a step (s), also tested before it (u), windows that are replaced (w). The last step is skipped.
    let long = format!("s?{}", " s.".repeat(1100));
    for (window, script, scale, bad) in [
        (2, "s? w s. s!", 512.0, 0),
        (2, "u? s.", 1024.0, 1),
        (2, "u! s.", 512.0, 0),
        (1101, &long, 1024.0, 1),
    ] {
        let amp = amp(100);
        let (mut player, mut skipped) = (one(&amp), false);
        player.optim = player.optim.with_accumulation(window);
        for call in script.split(' ') {
            let loss = loss(&player, factor(call));
            match &call[..1] {
                "s" => skipped = player.train(0.1, loss),
                "u" => {
                    let grads = player.optim.backward(loss, &player.model);
                    let grads = player.optim.unscale(grads, &player.model).unwrap();
                    skipped = player.step(0.1, grads);
                }
                _ => player.optim = player.optim.with_accumulation(window),
            }
        }
        let found = (skipped, amp.loss_scale(), player.counters().bad_losses());
        assert_eq!(found, (true, scale, bad), "{script}");
    }
}

#[test]
fn a_state_that_is_loaded_is_that_of_all() {
    let amp = amp(100);
    let mut players = pair(&amp);
    assert_eq!(play(&mut players, "a! b. a. b."), "-9:0 +9:0 +9:0 +9:1");
    let record = players[0].optim.to_record();
    assert_eq!(play(&mut players, "b! b! b!"), "-8:0 -7:0 -6:0");
    let fresh = AmpRecord::from_bytes(SgdConfig::new().init().into_bytes().unwrap()).unwrap();
    for (record, scale, tracker, steps) in [
        (Some(record), 512.0, 1, 7),
        (Some(fresh), 1024.0, 0, 5),
        (None, 1024.0, 0, 5),
    ] {
        play(&mut players, "a.");
        match record {
            Some(record) => players[0].optim.load_record(record).unwrap(),
            None => players[0].optim.scaler_mut().reset(),
        }
        let found = players[1].optim.scaler().growth_tracker();
        assert_eq!((amp.loss_scale(), found), (scale, tracker));
        // And so is what the handle shows: nothing of the run before, and the counts of the record in place of its optimizer's.
        assert_eq!(amp.counters().steps(), steps);
        assert!(amp.last_outcome().is_none() && amp.last_status().is_none());
    }
}

/// What one of two optimizers has shown of an iteration is not in a record.
#[test]
fn a_record_between_the_steps_of_an_iteration_is_warned_of() {
    let mut players = pair(&amp(100));
    for (script, warnings) in [("a. b.", 0), ("a.", 1), ("b.", 0)] {
        play(&mut players, script);
        let logged = captured(Level::Warn, || drop(players[0].optim.to_record()));
        assert_eq!(logged.len(), warnings, "{logged:?}");
        let is_right = |line: &String| line.contains("save after all of them have stepped");
        assert!(logged.iter().all(is_right), "{logged:?}");
    }
    players.truncate(1);
    play(&mut players, "a.");
    no_warning(|| drop(players[0].optim.to_record()));
}

/// The handle counts the steps of all optimizers: of one that is dropped too, with steps that the device has decided.
#[test]
fn a_handle_counts_the_steps_of_all_optimizers() {
    fn counted<O: ModuleOptim>(last: O) -> StepCounters {
        let amp = amp(100);
        play(&mut pair(&amp), "a! b. a. b! b.");
        assert_eq!((amp.counters().steps(), amp.counters().skipped()), (5, 2));
        let mut last = one_with(last, &amp);
        for factor in [1.0, OVERFLOW] {
            last.train(0.1, loss(&last, factor));
        }
        drop(last);
        amp.counters()
    }

    let waited = counted(SgdConfig::new().init());
    assert_eq!((waited.steps(), waited.skipped()), (7, 3));
    assert_eq!(counted(FusedSgd::new(SgdConfig::new())), waited);
}

/// A handle in bf16, too, although it has no scale. WGSL has no bf16.
#[test]
fn an_optimizer_whose_handle_opens_no_scope_is_warned_of_once() {
    let warned = |player: &mut One, in_scope: bool| {
        captured(Level::Warn, || {
            for _ in 0..3 {
                let loss = match in_scope {
                    true => loss(player, 1.0),
                    false => player.model.weight.val().mean(),
                };
                assert!(!player.train(0.1, loss));
            }
        })
    };
    let mut right = one(&amp(100));
    assert_eq!(warned(&mut right, true), [""; 0]);
    only(&warned(&mut right, false));

    // As with two calls of `MixedPrecision::f16()`: the scopes are another's.
    right.optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp(100));
    let parts = ["no `autocast`", "`MixedPrecision`", "give clones of one"];
    says(only(&warned(&mut right, true)), parts);

    for (amp, count) in [(MixedPrecision::bf16(), 1), (MixedPrecision::f32(), 0)] {
        if amp.check_device(&Device::default()).is_ok() {
            let logged = warned(&mut one(&amp), false);
            assert_eq!(logged.len(), count, "{amp:?}: {logged:?}");
        }
    }
}

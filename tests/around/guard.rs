//! Guards: finite steps far outside of what was usual are clipped or rejected. What becomes of a step that a hook rejects, `tests/oracle` shows.

use crate::support::*;

fn guard(json: &str) -> Guard {
    Guard::load_binary(json.as_bytes()).unwrap()
}

/// Begins after 8 values.
fn skip() -> Guard {
    guard(r#"{"SkipStep": {"rolling_interval_length": 16}}"#)
}

fn outlier() -> Guard {
    guard(r#"{"Outlier": {"window": 16, "skip_update_lossz": 3, "skip_update_gradz": 3}}"#)
}

fn zclip() -> Guard {
    guard(r#"{"ZClip": {"warmup_steps": 8}}"#)
}

/// About 1, never the same twice in a row.
fn usual(step: usize) -> f64 {
    1.0 + f64::from(wave(step, 1, 0.035)[0])
}

/// The factor of each step with these norms.
fn factors(guard: Guard, norms: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let steps = norms.into_iter().map(|norm| (None, norm));
    guard.replay(steps).unwrap()
}

fn guarded(optim: ScaledOptimizer, guard: Guard) -> Trial {
    Trial::new(optim.with_hook(guard))
}

/// After steps with usual norms.
fn warm(optim: ScaledOptimizer, guard: Guard) -> Trial {
    let mut run = guarded(optim, guard);
    (0..40).for_each(|index| run.step(norm(usual(index))));
    assert_eq!(run.counters().stepped(), 40);
    run
}

/// Spikes of the norm and of the loss, a loss that is not known, one that f32 cannot hold, and a NaN; of a window the mean of the losses, each
/// an outlier by itself. In the middle of a window the run goes on from a record.
#[test]
fn an_optimizer_does_what_a_replay_says() {
    let step = |index| {
        let loss = match index {
            3 | 40 => Some(1e39),
            55 => Some(200.0),
            70 => Some(f64::NAN),
            _ => (index % 7 != 0).then(|| usual(index + 3)),
        };
        let spike = if index % 21 == 20 { 100.0 } else { 1.0 };
        (loss, f64::from((spike * usual(index)) as f32))
    };
    let steps: Vec<_> = (0..100).map(step).collect();
    for guard in [skip(), outlier(), zclip()] {
        let expected = guard.replay(steps.iter().copied()).unwrap();
        assert!(expected.iter().any(|factor| *factor < 0.05), "{guard:?}");
        // How far off the losses of a window's micro-batches are.
        for offsets in [&[0.0][..], &[1000.0, -1000.0]] {
            let optim = || sgd().with_accumulation(offsets.len() as u32);
            let new = || guarded(optim(), guard);
            let mut run = new();
            for (index, (loss, length)) in steps.iter().enumerate() {
                run.model = Pair::of(0.0);
                for (part, off) in offsets.iter().enumerate() {
                    let losses = loss.iter();
                    losses.for_each(|loss| run.optim.set_loss(loss + off));
                    run.step(norm(*length));
                    if index == 51 && part == 0 {
                        let stored = run.optim.into_bytes().unwrap();
                        run.optim = new().optim;
                        run.optim.from_bytes(stored).unwrap();
                    }
                }
                let off = run.values()[0] + expected[index] * length;
                assert!(off.abs() < 1e-6 * length, "{guard:?}: {index}");
                let rejected = run.outcome() == Some(StepOutcome::Guarded);
                assert_eq!(rejected, expected[index] == 0.0, "{guard:?}: {index}");
            }
        }
    }
}

/// And the status has the norm before clipping.
#[test]
fn the_log_says_what_a_guard_has_done() {
    let (clips, rejects) = ("gradients clipped by", "step rejected by");
    let far = "the gradient norm is 100.0000, where ";
    for (guard, loss, length, done, why) in [
        (skip(), 1.0, 100.0, rejects, far),
        (outlier(), f64::NAN, 1.0, rejects, "the loss is NaN"),
        (zclip(), 1.0, 100.0, clips, ""),
    ] {
        let mut run = warm(sgd(), guard);
        run.optim.set_loss(loss);
        let logged = captured(Level::Info, || run.step(norm(length)));
        let said = format!("{done} the hook `guard`: {why}");
        says(&logged.join("\n"), [&*said]);
        assert!((run.status().norm() - length).abs() < 1e-4);
    }
}

/// In f32 nothing tests gradients: the guard measures them, and an infinity is an outlier too. The learning rate waits.
#[test]
fn without_a_loss_scale() {
    for guard in [skip(), outlier(), zclip()] {
        let mut run = Trial::at_border(&MixedPrecision::f32());
        run.optim = run.optim.with_hook(guard);
        let schedule = LinearLrSchedulerConfig::new(1e-3, 1e-4, 100).init();
        let mut lr = ScaledLrScheduler::new(schedule.unwrap(), &run.optim);
        let steps = (0..31).map(usual).chain([f64::INFINITY, f64::NAN, 1.0]);
        let rates = steps.map(|factor| {
            let rate = lr.step();
            let grads = run.in_scope(factor);
            run.model = run.optim.step(rate.clone(), run.model.clone(), grads);
            rate.base()
        });
        let rates: Vec<_> = rates.collect();
        let counters = run.counters();
        assert_eq!((counters.guarded(), counters.stepped()), (2, 32));
        assert!(run.values().into_iter().all(f64::is_finite), "{guard:?}");
        assert!(rates[31] < rates[30] && rates[31..] == [rates[31]; 3]);
    }
}

/// A NaN turns the originals off for good, or stops all steps for a window; and the values of steps that were rejected make them blind. Not
/// here.
#[test]
fn no_value_turns_a_guard_off() {
    let rest = || (40..44).map(usual).chain([100.0]);
    let nan = (0..40).map(usual).chain([f64::NAN]).chain(rest());
    let spikes = (0..220).map(|index: usize| {
        let spike = (150..200).contains(&index) && index.is_multiple_of(10);
        usual(index) * if spike { 100.0 } else { 1.0 }
    });
    for (guard, all, rejects) in [
        (zclip(), Guard::zclip(), false),
        (outlier(), Guard::outlier(), true),
        (skip(), Guard::skip_step(), true),
    ] {
        let after = &factors(guard, nan.clone())[40..];
        assert_eq!(after[..5], [0.0, 1.0, 1.0, 1.0, 1.0], "{guard:?}");
        assert!(after[5] < 0.05, "{guard:?}");
        // Finite, but not in f32.
        for at in [3, 40] {
            let beyond = (0..100).map(|index| if index == at { 1e39 } else { usual(index) });
            let mut factors = factors(guard, beyond);
            factors.remove(at);
            assert_eq!(factors, [1.0; 99], "{guard:?}, {at}");
        }
        let mut rejected = factors(all, spikes.clone());
        rejected.retain(|factor| *factor < 0.05);
        assert_eq!(rejected.len(), 5, "{all:?}");
        // A new level is accepted all the same.
        if rejects {
            let level = (0..200).map(|index| usual(index) + (index / 150) as f64);
            let factors = factors(all, level);
            assert!(factors[150] < 1.0 && factors[195..] == [1.0; 5], "{all:?}");
        }
    }
    // Of norms that are all zero a guard has nothing that it could reject others by.
    let zeros = factors(zclip(), [0.0; 40].into_iter().chain((0..80).map(usual)));
    assert!(zeros.iter().all(|factor| *factor > 0.0), "{zeros:?}");
    assert_eq!(zeros[100..], [1.0; 20]);
}

#[test]
fn it_goes_through_json() {
    for (whole, json) in [
        (Guard::zclip(), r#"{"ZClip": {}}"#),
        (Guard::skip_step(), r#"{"SkipStep": {}}"#),
        (Guard::outlier(), r#"{"Outlier": {"window": 128}}"#),
    ] {
        let text = whole.to_string();
        assert_eq!([guard(json), guard(&text)], [whole; 2]);
        let misspelt = text.replacen("\":", "s\":", 2);
        assert_ne!(misspelt, text);
        assert!(Guard::load_binary(misspelt.as_bytes()).is_err());
    }
}

/// Settings as JSON has them, and the message of their refusal.
const REFUSED: &str = r#"
{"ZClip": {"alpha": 1}} > `alpha` is 1, but must be at least 0 and below 1
{"ZClip": {"z_thresh": 0}} > `z_thresh` is 0, but must be finite and above 0
{"ZClip": {"eps": "NaN"}} > `eps` is NaN, but must be finite and at least 0
{"ZClip": {"warmup_steps": 0}} > `warmup_steps` is 0, but must be from 1 to 65536
{"ZClip": {"falloff": -1}} > `falloff` is -1, but must be at least 0
{"ZClip": {"clip_factor": "inf"}} > `clip_factor` is inf, but must be finite and above 0
{"SkipStep": {"rolling_interval_length": 1}} > `rolling_interval_length` is 1, but must be from 2 to 65536
{"SkipStep": {"sigma_factor": -1}} > `sigma_factor` is -1, but must be finite and above 0
{"Outlier": {"window": 2}} > `window` is 2, but must be from 3 to 65536
{"Outlier": {"window": 16, "skip_update_lossz": 6}} > `skip_update_lossz` is 6, but must be at least 0 and below 3.750, the highest z-score in a window of 16
{"Outlier": {"skip_update_lossz": 0, "skip_update_gradz": 0}} > `skip_update_gradz` is 0, but must be above 0, or `skip_update_lossz` must be
"#;

#[test]
fn a_wrong_setting_is_named() {
    for [json, message] in rows(REFUSED) {
        let guard = guard(json);
        let error = guard.replay([]).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(first_error(sgd().with_hook(guard)), error);
        // A later guard takes its place.
        guarded(sgd().with_hook(guard), skip()).step(ONES);
    }
}

#[test]
fn a_record_of_another_guard_is_warned_of() {
    let record = warm(sgd(), skip()).optim.to_record();
    let mut loaded = guarded(sgd(), outlier()).optim;
    let messages = captured(Level::Warn, || loaded.load_record(record).unwrap());
    let expected = "the stored state is that of another guard: this one starts again";
    assert_eq!(messages, [expected]);
}

//! Guards: finite steps far outside of what was usual are clipped or rejected.

mod spikes;

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

fn original(original: Guard) -> Guard {
    let json = original.to_string();
    guard(&json.replace(r#""original": false"#, r#""original": true"#))
}

/// About 1, never the same twice in a row.
fn usual(step: usize) -> f64 {
    1.0 + f64::from(wave(step, 1, 0.035)[0])
}

/// The same as norms to be replayed.
fn norms(steps: Range<usize>) -> impl Iterator<Item = (Option<f64>, f64)> + Clone {
    steps.map(|index| (None, usual(index)))
}

fn adam() -> ScaledOptimizer {
    let config = at_scale(1024.0).with_growth_interval(1000);
    ScaledOptimizer::new(AdamConfig::new().init(), config.init().unwrap())
}

fn guarded(optim: ScaledOptimizer, guard: Guard) -> Trial {
    Trial::new(optim.with_hook(guard))
}

/// After steps with usual norms, none of which is rejected.
fn warm(optim: ScaledOptimizer, guard: Guard, steps: usize) -> Trial {
    let mut run = guarded(optim, guard);
    for index in 0..steps {
        run.step(norm(usual(index)));
        assert_eq!(run.outcome(), Some(StepOutcome::Stepped), "{index}");
    }
    run
}

/// A step with this loss and this norm.
fn step_at(run: &mut Trial, loss: f64, gradient: f64) -> Option<StepOutcome> {
    run.optim.set_loss(loss);
    run.step(norm(gradient));
    run.outcome()
}

/// How far a step with a norm of 100 goes.
fn moved_by_a_spike(run: &mut Trial) -> f64 {
    let before = run.values()[0];
    run.step(norm(100.0));
    before - run.values()[0]
}

#[test]
fn a_step_that_is_held_back_leaves_no_trace() {
    for guard in [skip(), outlier()] {
        let optim = adam().with_ema(EmaConfig::new().with_momentum(0.5));
        let mut run = warm(optim, guard, 40);
        let mut without = run.clone();
        let messages = captured(Level::Info, || run.step(norm(100.0)));
        let wording = "step rejected by the hook `guard`: the gradient norm is 100.0000, where ";
        let mean = messages[0].strip_prefix(wording).unwrap();
        let is_about_1 = mean.starts_with("0.99") || mean.starts_with("1.00");
        assert!(is_about_1, "{mean}");
        assert_eq!(run.outcome(), Some(StepOutcome::Guarded));
        assert!((run.status().norm() - 100.0).abs() < 1e-4);
        let (counters, before) = (run.counters(), without.counters());
        assert_eq!((counters.guarded(), counters.skipped()), (1, 0));
        assert_eq!(counters.steps(), before.steps() + 1);
        assert_eq!(counters.stepped(), before.stepped());
        // The schedule stays.
        let state = |run: &Trial| {
            let updates = run.optim.ema().unwrap().updates();
            (run.values(), updates, run.optim.scaler().schedule())
        };
        assert_eq!(state(&run), state(&without), "{guard:?}");

        // And the run goes on as if the step had not been.
        for index in 40..50 {
            run.step(norm(usual(index)));
            without.step(norm(usual(index)));
        }
        assert_eq!(state(&run), state(&without));
    }
}

#[test]
fn zclip_shortens_a_spike_and_takes_the_step() {
    let mut run = warm(sgd(), zclip(), 30);
    let mut moved = 0.0;
    let messages = captured(Level::Info, || moved = moved_by_a_spike(&mut run));
    let clipped = |message: &String| message.starts_with("gradients clipped by the hook `guard`: ");
    assert!(messages.iter().any(clipped), "{messages:?}");
    assert!((0.95..1.2).contains(&moved), "{moved}");
    let found = (run.outcome(), run.counters().guarded());
    assert_eq!(found, (Some(StepOutcome::Stepped), 0));
    // Before clipping.
    assert!((run.status().norm() - 100.0).abs() < 1e-4);
    let coefficient = run.status().clip_coefficient().unwrap();
    assert!((coefficient * 100.0 - moved).abs() < 1e-3);
}

/// Of a guard's coefficient and that of a norm the smaller holds; values are limited after it.
#[test]
fn clipping_goes_with_a_guard() {
    use GradientClip::{GlobalNorm, Norm, Value};
    let factors = zclip().replay(norms(0..30).chain([(None, 100.0)]));
    let limit = 100.0 * factors.unwrap()[30];
    for (clip, expected) in [
        (GlobalNorm(0.5), 0.5),
        (GlobalNorm(2.0), limit),
        (Norm(0.25), 0.25),
        (Norm(50.0), limit),
        (Value(0.125), 0.125),
        (Value(50.0), limit),
    ] {
        let in_group = sgd().with_group_clipping(ParamGroup::all(), clip);
        for optim in [sgd().with_clipping(clip), in_group] {
            let moved = moved_by_a_spike(&mut warm(optim, zclip(), 30));
            assert!((moved - expected).abs() < 1e-4, "{clip:?}: {moved}");
        }
    }
}

#[test]
fn a_loss_is_judged_where_it_is_given() {
    for guard in [skip(), outlier()] {
        let mut run = guarded(sgd(), guard);
        for index in 0..40 {
            step_at(&mut run, 2.0 * usual(index + 7), usual(index));
        }
        let before = run.values();
        assert_eq!(step_at(&mut run, 200.0, 1.0), Some(StepOutcome::Guarded));
        assert_eq!(run.values(), before);
        // It was that of one call.
        run.step(norm(1.0));
        assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
        let messages = captured(Level::Info, || _ = step_at(&mut run, f64::NAN, 1.0));
        says(only(&messages), ["the hook `guard`: the loss is NaN"]);
        assert_eq!(run.outcome(), Some(StepOutcome::Guarded));
    }
}

#[test]
fn of_a_window_the_mean_of_the_losses_is_judged() {
    let mut run = guarded(sgd().with_accumulation(2), skip());
    for index in 0..40 {
        // Each by itself would be an outlier.
        let loss = if index % 2 == 0 { 1000.0 } else { -998.0 };
        step_at(&mut run, loss + usual(index / 2), usual(index));
    }
    let counters = run.counters();
    assert_eq!((counters.stepped(), counters.guarded()), (20, 0));

    let before = run.values();
    step_at(&mut run, 2.0, 1.0);
    assert_eq!(step_at(&mut run, 2.0, 400.0), Some(StepOutcome::Guarded));
    assert_eq!((run.values(), run.window()), (before.clone(), 0));
    run.step(norm(1.0));
    assert_eq!(run.window(), 1);
    run.flush();
    assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
    assert!(run.values() != before);
}

/// The other optimizer steps, and it alone moves the scale. Where there is no other, a step that is rejected moves nothing of the
/// schedule.
#[test]
fn one_of_two_optimizers_is_guarded() {
    if !on_flex() {
        return;
    }
    // f16 at a loss scale that no step here moves.
    let config = at_scale(8.0).with_growth_interval(100);
    let f16 = || MixedPrecision::f16().with_scaler(config).unwrap();
    let amp = f16();
    let [mut guarded, mut alone, mut plain] = [&amp, &f16(), &amp].map(Trial::at_border);
    guarded.optim = guarded.optim.with_hook(skip());
    alone.optim = alone.optim.with_hook(skip());
    let schedule = LinearLrSchedulerConfig::new(1e-3, 1e-4, 100).init();
    let mut lr = ScaledLrScheduler::new(schedule.unwrap(), &guarded.optim);
    let mut rates = Vec::new();
    for index in 0..31 {
        let rate = lr.step();
        rates.push(rate.base());
        let (factor, expected) = match index {
            29 => (100.0, StepOutcome::Guarded),
            _ => (usual(index), StepOutcome::Stepped),
        };
        let step = |run: &mut Trial, factor| {
            let grads = run.in_scope(factor);
            run.model = run.optim.step(rate.clone(), run.model.clone(), grads);
            run.outcome()
        };
        for run in [&mut guarded, &mut alone] {
            assert_eq!(step(run, factor), Some(expected), "step {index}");
        }
        let outcome = step(&mut plain, usual(index));
        assert_eq!(outcome, Some(StepOutcome::Stepped), "step {index}");
    }
    // 31 iterations: the plain optimizer's finite step counts in the one that was guarded.
    let scalers = [&alone, &plain].map(|run| run.optim.scaler());
    let found = scalers.map(|scaler| (scaler.loss_scale(), scaler.growth_tracker()));
    assert_eq!(found, [(8.0, 30), (8.0, 31)]);
    assert!(rates[29] < rates[28]);
    assert_eq!(rates[30], rates[29], "the learning rate waits");
}

/// In f32 nothing tests gradients: the guard measures them, and an infinity is an outlier too.
#[test]
fn without_a_loss_scale() {
    for guard in [skip(), outlier(), zclip()] {
        let mut run = Trial::at_border(&MixedPrecision::f32());
        run.optim = run.optim.with_hook(guard);
        for factor in (0..31).map(usual).chain([f64::INFINITY, f64::NAN]) {
            run.take(run.in_scope(factor));
        }
        let counters = run.counters();
        assert_eq!((counters.guarded(), counters.stepped()), (2, 31));
        let is_finite = run.values().into_iter().all(f64::is_finite);
        assert!(is_finite, "{guard:?}");
    }
}

#[test]
fn it_goes_through_json() {
    for (guard, json) in [
        (Guard::zclip(), r#"{"ZClip": {}}"#),
        (Guard::skip_step(), r#"{"SkipStep": {}}"#),
        (Guard::outlier(), r#"{"Outlier": {"window": 128}}"#),
    ] {
        assert_eq!(self::guard(json), guard);
        let text = guard.to_string();
        assert_eq!(self::guard(&text), guard);
        let misspelt = text.replace("original", "originall");
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
    // The original's thresholds may be out of reach, and off.
    let unreached = r#"{"Outlier": {"window": 16, "skip_update_gradz": 0, "original": true}}"#;
    guard(unreached).replay([]).unwrap();
}

/// In the middle of a window of micro-batches, with losses given.
#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    for guard in [skip(), outlier(), zclip(), original(zclip())] {
        let new = || guarded(adam().with_accumulation(2), guard);
        let go_on = |run: &mut Trial, steps: Range<usize>| {
            for index in steps {
                let spike = if index % 21 == 20 { 100.0 } else { 1.0 };
                step_at(run, usual(index + 3), spike * usual(index));
            }
        };
        let [mut whole, mut resumed] = [new(), new()];
        go_on(&mut whole, 0..51);
        assert_eq!(whole.window(), 1);
        let stored = whole.optim.into_bytes().unwrap();
        resumed.optim.from_bytes(stored).unwrap();
        resumed.model = whole.model.clone();
        let [whole, resumed] = [whole, resumed].map(|mut run| {
            go_on(&mut run, 51..101);
            let record = run.optim.into_bytes().unwrap();
            (run.values(), run.counters(), record.to_vec())
        });
        assert!(resumed == whole, "{guard:?}");
    }
}

#[test]
fn a_record_of_another_guard_is_warned_of() {
    let record = warm(adam(), skip(), 20).optim.to_record();
    let mut loaded = guarded(adam(), outlier()).optim;
    let messages = captured(Level::Warn, || loaded.load_record(record).unwrap());
    let expected = "the stored state is that of another guard: this one starts again";
    assert_eq!(messages, [expected]);
}

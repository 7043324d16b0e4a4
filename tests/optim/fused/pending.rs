//! Outcomes that are not known yet: what is known of them, and when, where optimizers are dropped, cloned, loaded and replaced.

use super::run::{Event, Run, Values, begun, step};
use super::{adam, gradients};
use crate::support::*;
use burn_amp::hook::{Hook, Proposed, Verdict};

fn config() -> GradScalerConfig {
    let config = at_scale(1024.0).with_growth_interval(3);
    config.with_max_consecutive_skips(None)
}

fn fused_sgd() -> FusedSgd {
    FusedSgd::new(SgdConfig::new())
}

/// The host decides the steps of a clone that accumulates. Scopes take the scale from it then, and not from the device, where the optimizer
/// that was cloned has left it.
#[test]
fn a_clone_whose_steps_the_host_decides_uses_the_scale_that_it_moves() {
    let amp = f16_under(at_scale(16384.0).with_growth_interval(1));
    let mut run = Trial::at_border_with(fused_sgd(), &amp);
    run.take(run.in_scope(1.0));
    let mut clone = run.clone();
    clone.optim = clone.optim.with_accumulation(1);
    // At 2^15, and at 2^16, which f16 does not hold.
    for outcome in [StepOutcome::Stepped, StepOutcome::Skipped] {
        clone.take(clone.in_scope(1.0));
        assert_eq!(clone.outcome(), Some(outcome));
    }
    assert_eq!(amp.loss_scale(), 32768.0);
}

/// What the oracle has no words for: clones that step by turns, a new optimizer in the place of one, new rules of clipping and a record that
/// comes back, all of them while steps are in flight. Records, the scale in the end, and what two optimizers have counted, found and trained.
fn by_turns<O: ModuleOptim + Clone>(make: fn() -> O) -> (Vec<Bytes>, LossScale, Vec<Shown>) {
    let mut one = begun(make(), config());
    let (amp, mut records) = (one.amp.clone(), Vec::new());
    let train = |run: &mut Run<O>, from: usize, events: &str| {
        for (number, event) in events.chars().enumerate() {
            let event = match event {
                '!' => Event::Overflow,
                '?' => Event::Nan,
                _ => Event::Nothing,
            };
            step(run, from + number, event).unwrap();
        }
    };
    for round in 1..6 {
        train(&mut one, 10 * round, ".!..");
        let mut other = one.clone();
        train(&mut other, 10 * round + 1, ".?.");
        train(&mut one, 10 * round + 2, "..!");
        records.push(one.optim.into_bytes().unwrap());
        train(&mut one, 10 * round + 3, "!");
        // The steps in flight were clipped by the rules of before.
        let clip = GradientClip::GlobalNorm(1.0 / (round * round) as f64);
        other.optim = other.optim.with_clipping(clip);
        train(&mut other, 10 * round + 4, "..");
        match round {
            2 => other.optim.from_bytes(records[0].clone()).unwrap(),
            4 => one.optim = ScaledOptimizer::new(make(), &amp),
            _ => one = other.clone(),
        }
        train(&mut other, 10 * round + 5, ".");
    }
    let mut both = [one.clone(), one];
    train(&mut both[1], 70, ".!");
    let shown = both.each_mut().map(|run| {
        let inner = state(&run.optim.clone().into_inner());
        run.optim.synchronize().unwrap();
        let status = run.optim.scaler().last_status();
        (inner, run.counters(), status, parameters(&run.model))
    });
    drop(both);
    (records, GradScaler::from(&amp).schedule(), shown.to_vec())
}

/// The state of a clone of its moment, and what an optimizer has counted, found and trained.
type Shown = (Pack, StepCounters, Option<GradientStatus>, Values);

#[test]
fn every_step_moves_the_scale_whoever_is_dropped_or_cloned() {
    let pending = by_turns(adam);
    let waited = by_turns(|| Waited(adam()));
    assert!(pending.0 == waited.0);
    assert_eq!((pending.1, pending.2), (waited.1, waited.2));
}

/// One that waits, while the steps of another are in flight.
#[test]
fn another_optimizer_takes_the_scale_over() {
    for is_dropped in [false, true] {
        let mut run = begun(adam(), GradScalerConfig::new());
        for number in 10..15 {
            step(&mut run, number, Event::Nothing).unwrap();
        }
        let mut plain = Run::new(run.model.clone(), &run.amp);
        let kept = (!is_dropped).then_some(run);
        // The scopes take the scale from where it moves now: in the end nothing overflows.
        for number in 0..40 {
            step(&mut plain, number, Event::Overflow).unwrap();
        }
        let skipped = plain.counters().skipped();
        assert!((1..40).contains(&skipped), "{skipped}");
        drop(kept);
    }
}

/// Four skips, of which three are allowed.
fn exhausted<O: ModuleOptim>(optim: O) -> (Run<O>, Option<AmpError>) {
    let mut run = begun(optim, config().with_max_consecutive_skips(Some(3)));
    let mut steps = (0..4).map(|number| step(&mut run, number, Event::Overflow));
    let error = steps.find_map(Result::err);
    drop(steps);
    (run, error)
}

#[test]
fn a_clone_has_the_error_that_nobody_has_received() {
    let (mut run, _) = exhausted(adam());
    // The outcomes are known from here on.
    run.optim.scaler_mut();
    let mut copy = run.optim.clone();
    let error = copy.synchronize().unwrap_err();
    is_error(&error, "LossScaleExhausted", []);
    assert_eq!(run.optim.synchronize(), Err(error));
    let again = [copy.synchronize(), run.optim.synchronize()];
    assert_eq!(again, [Ok(()), Ok(())]);
}

/// No call of an optimizer that is dropped can return it.
#[test]
fn the_log_has_the_error_that_no_call_returns() {
    for synchronizes in [false, true] {
        let mut logged = captured(Level::Warn, || {
            let (mut run, _) = exhausted(adam());
            if synchronizes {
                run.optim.synchronize().unwrap_err();
            }
        });
        logged.retain(|line| line.contains("after 4 skipped steps in a row"));
        only(&logged);
    }
}

/// It is that of a step that is waited for, and is returned once.
#[test]
fn the_first_call_after_an_error_is_known_returns_it() {
    type Call = fn(&mut Run) -> Result<(), AmpError>;
    let calls: [(&str, Call); 5] = [
        ("step", |run| step(run, 9, Event::Nothing)),
        ("flush", |run| {
            Ok(run.optim.try_flush(0.1, run.model.clone()).map(drop)?)
        }),
        ("synchronize", |run| run.optim.synchronize()),
        ("discard", |run| {
            let grads = gradients(&run.model, 9, FloatDType::F32);
            run.optim.discard(grads)
        }),
        ("unscale", |run| {
            let loss = run.model.head.weight.val().sum();
            let grads = run.optim.backward(loss, &run.model);
            run.optim.unscale(grads, &run.model).map(drop)
        }),
    ];
    let (waited, expected) = exhausted(Waited(adam()));
    is_error(expected.as_ref().unwrap(), "LossScaleExhausted", ["4 "]);
    for (name, call) in calls {
        let (mut run, _) = exhausted(adam());
        // The outcomes are known from here on: a step would not wait for them.
        run.optim.scaler_mut();
        assert_eq!(call(&mut run).err(), expected, "{name}");
        assert_eq!(parameters(&run.model), parameters(&waited.model), "{name}");
        let found = (run.counters().steps(), run.optim.synchronize());
        assert_eq!(found, (4, Ok(())), "{name}");
        assert_eq!(run.amp.loss_scale(), waited.amp.loss_scale(), "{name}");
    }
}

/// Shows the losses of the steps that it waits for.
#[derive(Clone, Debug, Default)]
struct Losses(Arc<Mutex<Vec<Option<f64>>>>);

impl Hook for Losses {
    fn name(&self) -> &str {
        "losses"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        if step.is_on_device() {
            return Verdict::Wait;
        }
        self.0.lock().unwrap().push(step.loss());
        Verdict::Apply
    }
}

/// A loss is that of one step, the optimizer shows no step that was skipped, and after an error scopes use the scale of the host.
#[test]
fn between_two_steps_all_is_as_where_each_is_waited_for() {
    fn run<O: ModuleOptim + Clone>(optim: O) -> (f32, usize, Vec<f64>) {
        let amp = f16_under(at_scale(65536.0).with_max_consecutive_skips(Some(3)));
        let mut run = Trial::at_border_with(optim, &amp);
        run.optim.set_loss(5.0);
        run.take(run.in_scope(10.0));
        let tensors = state(run.optim.optimizer()).tensors.len();
        let losses = Losses::default();
        let mut hooked = run.clone();
        hooked.optim = hooked.optim.with_hook(losses.clone());
        hooked.take(hooked.in_scope(1.0));
        assert_eq!(*losses.0.lock().unwrap(), [None]);
        drop(hooked);
        // Finite at 4096, to which no host lowers the scale.
        for _ in 0..8 {
            let (model, grads) = (run.model.clone(), run.in_scope(10.0));
            let stepped = run.optim.try_step(0.1, model, grads);
            run.model = stepped.unwrap_or_else(|failed| *failed.module);
            // Another device may be some steps behind, and lowers its scale further before the error is known.
            let _ = on_flex() || run.optim.synchronize().is_ok();
        }
        run.optim.synchronize().ok();
        (amp.loss_scale(), tensors, run.values())
    }

    let waited = run(Waited(adam()));
    assert_eq!(waited.1, 0);
    assert_eq!(run(adam()), waited);
}

/// Also of an optimizer that keeps nothing else, and does not count.
#[test]
fn skips_after_a_load_leave_masters_in_records() {
    let run = || {
        let run = Trial::at_border_with(fused_sgd(), &MixedPrecision::f16());
        run.with_dtype(DType::F16)
    };
    let (mut first, mut resumed) = (run(), run());
    first.take(first.model.plain(ONES));
    let bytes = first.optim.into_bytes().unwrap();
    resumed.model = first.model;
    resumed.optim.from_bytes(bytes).unwrap();
    for _ in 0..2 {
        resumed.take(resumed.model.plain(BAD));
        assert_eq!(resumed.optim.to_record().num_tensors(), 2);
    }
}

//! Outcomes that are not known yet: what is known of them, and when, where optimizers are dropped, cloned, loaded and replaced.

use super::adam;
use super::run::{OVERFLOW, Run, begun, step};
use crate::support::*;
use burn_amp::hook::{Hook, Proposed, Verdict};

fn fused_sgd() -> FusedSgd {
    FusedSgd::new(SgdConfig::new())
}

/// The host decides the steps of one that accumulates, a clone or another. Scopes take the scale from it then, and not from the device, where the first one
/// has left it. An iteration of two is two steps.
#[test]
fn scopes_use_the_scale_of_who_steps() {
    for (is_clone, is_dropped, outcomes) in [
        (true, false, "+-"),
        (true, true, "+-"),
        (false, false, "++--"),
        (false, true, "+-"),
    ] {
        let amp = f16_under(at_scale(16384.0).with_growth_interval(1));
        let mut run = Trial::at_border_with(fused_sgd(), &amp);
        run.take(run.in_scope(1.0));
        let mut other = match is_clone {
            true => run.clone(),
            false => Trial::at_border_with(fused_sgd(), &amp),
        };
        other.optim = other.optim.with_accumulation(1);
        let kept = (!is_dropped).then_some(run);
        // At 2^15, and at 2^16, which f16 does not hold.
        for outcome in outcomes.chars() {
            other.take(other.in_scope(1.0));
            let is_stepped = other.outcome() == Some(StepOutcome::Stepped);
            assert_eq!(is_stepped, outcome == '+', "{is_clone}, {is_dropped}");
        }
        assert_eq!(amp.loss_scale(), 32768.0);
        drop(kept);
    }
}

/// What the oracle has no words for: clones that step by turns, a new optimizer in the place of one, new rules of clipping and a record that
/// comes back, all of them while steps are in flight. Records, the scale in the end, and what two optimizers show.
fn by_turns<O: ModuleOptim + Clone>(make: fn() -> O) -> (Vec<Bytes>, LossScale, [Shown; 2]) {
    let config = at_scale(1024.0).with_max_consecutive_skips(None);
    let mut one = begun(make(), config.with_growth_interval(3));
    let (amp, mut records) = (one.amp.clone(), Vec::new());
    let train = |run: &mut Run<O>, from: usize, events: &str| {
        for (number, event) in events.chars().enumerate() {
            let factor = match event {
                '!' => OVERFLOW,
                '?' => f32::NAN,
                _ => 1.0,
            };
            step(run, from + number, factor).unwrap();
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
    let shown = both.map(|mut run| {
        let inner = state(&run.optim.clone().into_inner());
        run.optim.synchronize().unwrap();
        let trained = pack(run.model.into_record().into_bytes().unwrap());
        let scaler = run.optim.scaler();
        (inner, trained, scaler.counters(), scaler.last_status())
    });
    (records, GradScaler::from(&amp).schedule(), shown)
}

/// The state of a clone of its moment, what was trained, and what an optimizer has counted and found.
type Shown = (Pack, Pack, StepCounters, Option<GradientStatus>);

#[test]
fn every_step_moves_the_scale_whoever_is_dropped_or_cloned() {
    assert!(by_turns(adam) == by_turns(|| Waited(adam())));
}

/// Four skips, of which three are allowed.
fn exhausted<O: ModuleOptim>(optim: O) -> (Run<O>, Option<AmpError>) {
    let config = at_scale(1024.0).with_max_consecutive_skips(Some(3));
    let mut run = begun(optim, config);
    let mut steps = (0..4).map(|number| step(&mut run, number, OVERFLOW));
    let error = steps.find_map(Result::err);
    drop(steps);
    (run, error)
}

/// No call of an optimizer that is dropped can return it.
#[test]
fn the_log_has_the_error_that_no_call_returns() {
    for (lines, synchronizes) in [(1, false), (2, true)] {
        let logged = logs("after 4 skipped steps in a row", || {
            let (mut run, _) = exhausted(adam());
            if synchronizes {
                run.optim.synchronize().unwrap_err();
            }
        });
        assert_eq!(logged.len(), lines, "{logged:?}");
        assert!(logged.iter().all(|line| line.starts_with("WARN")));
    }
}

/// It is that of a step that is waited for, and is returned once. A clone has it, too.
#[test]
fn the_first_call_after_an_error_is_known_returns_it() {
    type Call = fn(&mut Run) -> Result<(), AmpError>;
    let calls: [Call; 5] = [
        |run| step(run, 9, 1.0),
        |run| Ok(run.optim.try_flush(0.1, run.model.clone()).map(drop)?),
        |run| run.optim.synchronize(),
        |run| run.optim.discard(by_hand(&run.model, 9)),
        |run| {
            let loss = run.model.head.weight.val().sum();
            let grads = run.optim.backward(loss, &run.model);
            run.optim.unscale(grads, &run.model).map(drop)
        },
    ];
    let (waited, expected) = exhausted(Waited(adam()));
    is_error(expected.as_ref().unwrap(), "LossScaleExhausted", ["4 "]);
    for (number, call) in calls.into_iter().enumerate() {
        let (mut run, _) = exhausted(adam());
        // The outcomes are known from here on: a step would not wait for them.
        run.optim.scaler_mut();
        let mut copy = run.optim.clone();
        assert_eq!(copy.synchronize().err(), expected, "{number}");
        assert_eq!(call(&mut run).err(), expected, "{number}");
        assert!(parameters(&run.model) == parameters(&waited.model));
        let again = [copy.synchronize(), run.optim.synchronize()];
        assert_eq!((run.counters().steps(), again), (4, [Ok(()), Ok(())]));
        assert_eq!(run.amp.loss_scale(), waited.amp.loss_scale(), "{number}");
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
    let run = || Trial::at_border_with(fused_sgd(), &MixedPrecision::f16()).with_dtype(DType::F16);
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

//! Outcomes that are not known yet: what is known of them, and when, where optimizers are dropped, cloned, loaded and replaced.

use super::gradients;
use super::run::{Event, Run, Values, adam, begun, is_flex, nesterov, step};
use crate::support::*;
use burn_amp::hook::{Hook, Proposed, Verdict};

fn config() -> GradScalerConfig {
    let config = at_scale(1024.0).with_growth_interval(3);
    config.with_max_consecutive_skips(None)
}

#[test]
fn a_step_is_resolved_with_the_next_one() {
    let mut run = begun(adam(), super::run::config());
    let before = parameters(&run.model);
    step(&mut run, 0, Event::Overflow).unwrap();
    assert_eq!(parameters(&run.model), before, "skipped on the device");
    assert_eq!(run.counters().steps(), 0);
    step(&mut run, 1, Event::Nothing).unwrap();
    assert_ne!(parameters(&run.model), before);
    run.optim.synchronize().unwrap();
    assert_eq!((run.counters().steps(), run.counters().skipped()), (2, 1));
    let found = (run.optim.scaler().last_outcome(), run.scale());
    assert_eq!(found, (Some(StepOutcome::Stepped), 32768.0));
}

/// The host decides the steps of a clone that accumulates. Scopes take the scale from it then, and not from the device, where the optimizer
/// that was cloned has left it.
#[test]
fn a_clone_whose_steps_the_host_decides_uses_the_scale_that_it_moves() {
    let amp = f16_under(at_scale(16384.0).with_growth_interval(1));
    let mut run = Trial::at_border_with(FusedSgd::new(SgdConfig::new()), &amp);
    let step = |run: &mut Trial<FusedSgd>| {
        run.take(run.in_scope(1.0));
        run.outcome()
    };
    step(&mut run);
    let mut clone = run.clone();
    clone.optim = clone.optim.with_accumulation(1);
    // At 2^15, and at 2^16, which f16 does not hold.
    assert_eq!(step(&mut clone), Some(StepOutcome::Stepped));
    assert_eq!(step(&mut clone), Some(StepOutcome::Skipped));
    assert_eq!(amp.loss_scale(), 32768.0);
}

/// The steps of another optimizer that is gone belong to an iteration: the host ends it, and the device goes on from there.
#[test]
fn an_iteration_that_was_shared_ends_before_the_device_goes_on() {
    fn run<O: ModuleOptim>(make: impl Fn() -> O) -> (StepCounters, f32, Vec<f64>) {
        let amp = f16_under(at_scale(8192.0).with_growth_interval(2));
        let [first, mut run] = [(); 2].map(|()| Trial::at_border_with(make(), &amp));
        (0..2).for_each(|_| run.take(run.in_scope(1.0)));
        drop(first);
        // Up to 2^16, at which f16 overflows, and again.
        (0..8).for_each(|_| run.take(run.in_scope(1.0)));
        run.optim.synchronize().unwrap();
        (run.counters(), amp.loss_scale(), run.values())
    }
    let host = run(|| SgdConfig::new().init());
    assert_eq!(host.0.skipped(), 2);
    assert_eq!(run(|| FusedSgd::new(SgdConfig::new())), host);
}

/// What a program shows of an optimizer: the state of a clone of its moment, and what it has counted, found and trained.
type Optim = (Pack, StepCounters, Option<GradientStatus>, Values);

/// Records in mid-run, the scale in the end, and the optimizers.
type Shown = (Vec<Bytes>, GradScaler, Vec<Optim>);

/// Steps, drops, clones, loads, new optimizers and new rules of clipping on one scale, in the order of the seed.
fn program<O: ModuleOptim + Clone>(make: impl Fn() -> O, seed: u64) -> Shown {
    let mut state = seed;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) as usize % end
    };
    let first = begun(make(), config());
    let amp = first.amp.clone();
    let mut runs = vec![first];
    let mut records: Vec<Bytes> = Vec::new();
    for number in 0..60 {
        let at = below(runs.len());
        match below(22) {
            0..2 => runs.push(runs[at].clone()),
            2..4 if runs.len() > 1 => drop(runs.swap_remove(at)),
            4 => runs[at].optim = ScaledOptimizer::new(make(), &amp),
            5 => runs[at].optim.synchronize().unwrap(),
            6 => records.push(runs[at].optim.into_bytes().unwrap()),
            7 => {
                if let Some(record) = records.last() {
                    runs[at].optim.from_bytes(record.clone()).unwrap();
                }
            }
            8 => {
                // The steps in flight were clipped by the rules of before.
                let clip = GradientClip::GlobalNorm(1.0 / (number * number) as f64);
                let mut run = runs.swap_remove(at);
                run.optim = run.optim.with_clipping(clip);
                runs.push(run);
            }
            drawn => {
                let event = match drawn {
                    9..13 => Event::Overflow,
                    13 => Event::Nan,
                    _ => Event::Nothing,
                };
                step(&mut runs[at], number, event).unwrap();
            }
        }
    }
    // The last ones are dropped with what they have under way.
    runs.truncate(2);
    let shown = runs.iter_mut().map(|run| {
        let inner = burn_amp_tests::state(&run.optim.clone().into_inner());
        run.optim.synchronize().unwrap();
        let status = run.optim.scaler().last_status();
        (inner, run.counters(), status, parameters(&run.model))
    });
    let shown = shown.collect();
    drop(runs);
    (records, GradScaler::from(&amp), shown)
}

#[test]
fn every_step_moves_the_scale_whoever_is_dropped_or_cloned() {
    whoever_is_dropped_or_cloned(0..6);
}

#[test]
#[ignore = "slow"]
fn sweep_every_step_moves_the_scale() {
    whoever_is_dropped_or_cloned(6..48);
}

fn whoever_is_dropped_or_cloned(seeds: Range<u64>) {
    for seed in seeds {
        let (pending, scaler, optims) = program(adam, seed);
        let waited = program(|| Waited(adam()), seed);
        assert_eq!(scaler.schedule(), waited.1.schedule(), "seed {seed}");
        assert_eq!(optims, waited.2, "seed {seed}");
        assert!(pending == waited.0, "seed {seed}");
    }
}

/// One that waits, while the steps of another are in flight.
#[test]
fn another_optimizer_takes_the_scale_over() {
    for is_dropped in [false, true] {
        let mut run = begun(adam(), super::run::config());
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

/// One that ends with the fourth skip.
fn limited<O: ModuleOptim>(optim: O) -> Run<O> {
    begun(optim, config().with_max_consecutive_skips(Some(3)))
}

fn exhausted() -> Run<FusedAdam> {
    let mut run = limited(adam());
    for number in 0..4 {
        step(&mut run, number, Event::Overflow).unwrap();
    }
    run
}

#[test]
fn a_clone_has_the_error_that_nobody_has_received() {
    let mut run = exhausted();
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
            let mut run = exhausted();
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
    type Call = fn(&mut Run<FusedAdam>) -> Result<(), AmpError>;
    let calls: [(&str, Call); 5] = [
        ("step", |run| step(run, 9, Event::Nothing)),
        ("flush", |run| {
            run.optim.try_flush(0.1, run.model.clone())?;
            Ok(())
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
    let mut waited = limited(Waited(adam()));
    let start = parameters(&waited.model);
    let expected = (0..4).find_map(|number| step(&mut waited, number, Event::Overflow).err());
    is_error(expected.as_ref().unwrap(), "LossScaleExhausted", ["4 "]);
    for (name, call) in calls {
        let mut run = exhausted();
        assert_eq!(parameters(&run.model), start, "{name}");
        assert_eq!(call(&mut run).err(), expected, "{name}");
        assert_eq!(parameters(&run.model), start, "{name}");
        let found = (run.counters().steps(), run.optim.synchronize());
        assert_eq!(found, (4, Ok(())), "{name}");
        assert_eq!(run.amp.loss_scale(), waited.amp.loss_scale(), "{name}");
    }
}

/// As of an optimizer that was never called: Burn's own loads it too.
#[test]
fn a_record_after_skipped_steps_alone_holds_no_state() {
    fn after_three<O: ModuleOptim>(run: &mut Run<O>, event: Event) -> AmpRecord {
        for number in 0..3 {
            step(run, number, event).unwrap();
        }
        run.optim.to_record()
    }

    fn record<O: ModuleOptim>(optim: O) -> AmpRecord {
        let record = after_three(&mut begun(optim, config()), Event::Overflow);
        assert_eq!(record.num_tensors(), 0);
        record
    }

    fn resumed<O: ModuleOptim>(optim: O, record: AmpRecord) -> Values {
        let mut run = begun(optim, config());
        run.optim.load_record(record).unwrap();
        after_three(&mut run, Event::Nothing);
        parameters(&run.model)
    }

    let stored = record(adam());
    let bytes = |record: AmpRecord| record.into_bytes().unwrap();
    assert!(bytes(stored.clone()) == bytes(record(Waited(adam()))));
    assert!(bytes(record(nesterov())) == bytes(record(Waited(nesterov()))));

    let burns = resumed(AdamConfig::new().init(), stored.clone());
    assert_eq!(resumed(adam(), stored), burns);
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

/// Gradients that are unscaled and dropped count, a loss is that of one step, the optimizer shows no step that was skipped, and after an
/// error scopes use the scale of the host.
#[test]
fn between_two_steps_all_is_as_where_each_is_waited_for() {
    fn run<O: ModuleOptim + Clone>(optim: O) -> (u64, f32, usize, Vec<f64>) {
        let amp = f16_under(at_scale(65536.0).with_max_consecutive_skips(Some(3)));
        let mut run = Trial::at_border_with(optim, &amp);
        drop(run.unscaled(BAD));
        run.optim.set_loss(5.0);
        run.take(run.in_scope(10.0));
        let record = run.optim.optimizer().to_record().unwrap();
        let record = AmpRecord::from_bytes(record.into_bytes().unwrap()).unwrap();
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
            let _ = is_flex() || run.optim.synchronize().is_ok();
        }
        run.optim.synchronize().ok();
        let (discarded, tensors) = (run.counters().discarded(), record.num_tensors());
        (discarded, amp.loss_scale(), tensors, run.values())
    }

    let waited = run(Waited(adam()));
    assert_eq!((waited.0, waited.2), (1, 0));
    assert_eq!(run(adam()), waited);
}

/// Also of an optimizer that keeps nothing else, and does not count.
#[test]
fn skips_after_a_load_leave_masters_in_records() {
    let run = || {
        let optim = FusedSgd::new(SgdConfig::new());
        Trial::at_border_with(optim, &MixedPrecision::f16()).with_dtype(DType::F16)
    };
    let mut first = run();
    first.take(first.model.plain(ONES));
    let bytes = first.optim.into_bytes().unwrap();
    let mut resumed = run();
    resumed.model = first.model;
    resumed.optim.from_bytes(bytes).unwrap();
    for _ in 0..2 {
        resumed.take(resumed.model.plain(BAD));
        assert_eq!(resumed.optim.to_record().num_tensors(), 2);
    }
}

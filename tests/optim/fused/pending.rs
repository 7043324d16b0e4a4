//! Outcomes that are not known yet, where optimizers are dropped, cloned and replaced.

use burn_amp_tests::prelude::*;

use super::{
    gradients,
    unheard::{Event, Net, Run, Values, Waited, is_flex},
};

fn config() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(3)
        .with_max_consecutive_skips(None)
}

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new()).unwrap()
}

/// The same numbers for the same seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// What a program shows: records in mid-run, the scale in the end, and what each optimizer has counted and trained.
type Shown = (Vec<Vec<u8>>, GradScaler, Vec<(StepCounters, Values)>);

/// Steps, drops, clones and new optimizers on one scale, in the order of the seed.
fn program<O: ModuleOptim + Clone>(net: &Net, make: impl Fn() -> O, seed: u64) -> Shown {
    let mut draws = Draws(seed);
    let first = Run::of(net, make(), config());
    let amp = first.amp.clone();
    let mut runs = vec![first];
    let mut records = Vec::new();
    for step in 0..60 {
        let at = draws.below(runs.len());
        match draws.below(20) {
            0..2 => runs.push(runs[at].clone()),
            2..4 if runs.len() > 1 => drop(runs.swap_remove(at)),
            4 => runs[at].optim = ScaledOptimizer::new(make(), &amp),
            5 => runs[at].optim.synchronize().unwrap(),
            6 => records.push(runs[at].optim.into_bytes().unwrap().to_vec()),
            drawn => {
                let event = match drawn {
                    7..11 => Event::Overflow,
                    11 => Event::Nan,
                    _ => Event::Nothing,
                };
                runs[at].step(step, event).unwrap();
            }
        }
    }
    // The last ones are dropped with what they have under way.
    runs.truncate(2);
    let shown = runs.iter_mut().map(|run| {
        run.optim.synchronize().unwrap();
        (run.optim.scaler().counters(), run.values())
    });
    let shown = shown.collect();
    drop(runs);
    (records, GradScaler::from(&amp), shown)
}

#[test]
fn the_scale_learns_of_every_step_whoever_is_dropped_or_cloned() {
    let net = Net::new(&Device::default().autodiff());
    for seed in 0..if is_flex() { 48 } else { 6 } {
        let (pending, scaler, optims) = program(&net, adam, seed);
        let waited = program(&net, || Waited(adam()), seed);
        assert_eq!(scaler.schedule(), waited.1.schedule(), "seed {seed}");
        assert_eq!(optims, waited.2, "seed {seed}");
        assert!(pending == waited.0, "seed {seed}");
    }
}

fn exhausted(skips: u32) -> Run<FusedAdam> {
    let net = Net::new(&Device::default().autodiff());
    let config = config().with_max_consecutive_skips(Some(skips));
    let mut run = Run::of(&net, adam(), config);
    for step in 0..=skips as usize {
        run.step(step, Event::Overflow).unwrap();
    }
    run
}

#[test]
fn a_clone_has_the_error_that_nobody_was_told_of() {
    let mut run = exhausted(3);
    // The outcomes are known from here on.
    run.optim.scaler_mut();
    let mut copy = run.optim.clone();
    let error = copy.synchronize().unwrap_err();
    let expected = "LossScaleExhausted";
    assert!(format!("{error:?}").starts_with(expected), "{error:?}");
    assert_eq!(run.optim.synchronize(), Err(error));
    assert_eq!(
        (copy.synchronize(), run.optim.synchronize()),
        (Ok(()), Ok(()))
    );
}

/// It is that of a step that is waited for, and is told once.
#[test]
fn the_first_call_after_an_error_is_known_returns_it() {
    type Call = fn(&mut Run<FusedAdam>) -> Result<(), AmpError>;
    let calls: [(&str, Call); 5] = [
        ("step", |run| run.step(9, Event::Nothing)),
        ("flush", |run| {
            let flushed = run.optim.try_flush(0.1, run.net.clone());
            flushed.map(drop).map_err(|error| error.error)
        }),
        ("synchronize", |run| run.optim.synchronize()),
        ("discard", |run| {
            let grads = gradients(&run.net, 9, burn::tensor::FloatDType::F32);
            run.optim.discard(grads)
        }),
        ("unscale", |run| {
            let grads = run
                .optim
                .backward(run.net.output.weight.val().sum(), &run.net);
            run.optim.unscale(grads, &run.net).map(drop)
        }),
    ];
    let net = Net::new(&Device::default().autodiff());
    let config = config().with_max_consecutive_skips(Some(3));
    let mut waited = Run::of(&net, Waited(adam()), config);
    let expected = (0..4).find_map(|step| waited.step(step, Event::Overflow).err());
    for (name, call) in calls {
        let mut run = exhausted(3);
        let before = run.values();
        assert_eq!(call(&mut run).err(), expected, "{name}");
        assert_eq!(run.values(), before, "{name}");
        assert_eq!(run.optim.scaler().counters().steps(), 4, "{name}");
        assert_eq!(run.optim.synchronize(), Ok(()), "{name}");
        assert_eq!(run.amp.loss_scale(), waited.amp.loss_scale(), "{name}");
    }
}

/// As of an optimizer that was never called: Burn's own loads it too.
#[test]
fn a_record_after_skipped_steps_alone_holds_no_state() {
    fn record<O: ModuleOptim>(net: &Net, optim: O) -> AmpRecord {
        let mut run = Run::of(net, optim, config());
        for step in 0..3 {
            run.step(step, Event::Overflow).unwrap();
        }
        run.optim.to_record()
    }

    fn bytes(record: AmpRecord) -> Vec<u8> {
        assert_eq!(record.num_tensors(), 0);
        record.into_bytes().unwrap().to_vec()
    }

    let net = Net::new(&Device::default().autodiff());
    let sgd = || {
        let config = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        FusedSgd::new(config).unwrap()
    };
    assert!(bytes(record(&net, adam())) == bytes(record(&net, Waited(adam()))));
    assert!(bytes(record(&net, sgd())) == bytes(record(&net, Waited(sgd()))));

    let stored = record(&net, adam());
    let mut burns = Run::of(&net, AdamConfig::new().init(), config());
    burns.optim.load_record(stored.clone()).unwrap();
    let mut fused = Run::of(&net, adam(), config());
    fused.optim.load_record(stored).unwrap();
    for step in 0..3 {
        burns.step(step, Event::Nothing).unwrap();
        fused.step(step, Event::Nothing).unwrap();
    }
    assert_eq!(burns.values(), fused.values());
}

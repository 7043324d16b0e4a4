//! Records of an open window and of averages: resumed exactly, refused where they do not fit, readable by plain Burn.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use log::Level;
use tempfile::tempdir;

use crate::support::{Pair, Run, captured, damaged, pack, sgd};

const RULES: [bool; 2] = [false, true];
const END: usize = 60;

/// Stops and resumes at each of these points: between windows and inside them.
fn resume<O: ModuleOptim>(build: impl Fn() -> Run<O>) {
    let mut straight = build();
    let start = straight.snapshot();
    straight.train_until(END);
    let end = straight.snapshot();
    assert_ne!(start.parameters, end.parameters);
    assert_ne!(end.averaged.as_ref(), Some(&end.parameters));
    let counters = end.counters;
    assert!(counters.skipped() + counters.dropped() >= 3, "{counters:?}");
    assert!(counters.stepped() >= 10, "{counters:?}");

    let mut open = 0;
    for stop in [20, 21, 22, 37] {
        let folder = tempdir().unwrap();
        let mut first = build();
        first.train_until(stop);
        first.save(folder.path());
        let saved = first.snapshot();
        open += u32::from(saved.window > 0);

        let mut second = build();
        second.load(folder.path(), stop);
        assert_eq!(second.snapshot(), saved);
        second.train_until(END);
        assert_eq!(second.snapshot(), end, "stopped after {stop}");
    }
    assert!(open >= 2, "no stop was inside a window");
}

#[test]
fn a_run_goes_on_bit_for_bit() {
    for rule in RULES {
        resume(|| Run::mixed(AdamConfig::new().init()).with_all(rule));
        resume(|| Run::mixed(SgdConfig::new().init()).with_all(rule));
        resume(|| Run::half(MasterWeights::new(AdamConfig::new().build())).with_all(rule));
    }
}

/// Two applied steps with averages, then one of two micro-batches.
fn trained(rule: bool) -> (ScaledOptimizer<ModuleOptimizer>, Pair) {
    let mut optim = configured(rule);
    let mut model = Pair::zeros(DType::F32);
    for k in 0..5 {
        let scale = optim.scaler().loss_scale();
        let grads = model.gradients([1.0 + k as f32; 6], [0.5; 4], scale);
        model = optim.step(0.1, model, grads);
    }
    assert_eq!(optim.window().unwrap().len(), 1);
    assert_eq!(optim.ema().unwrap().updates(), 2);
    (optim, model)
}

fn configured(rule: bool) -> ScaledOptimizer<ModuleOptimizer> {
    sgd()
        .with_accumulation(AccumulationConfig::new(2).with_skip_micro_batch(rule))
        .unwrap()
        .with_ema(EmaConfig::new())
        .unwrap()
}

#[test]
fn the_record_says_what_it_holds() {
    for rule in RULES {
        let record = trained(rule).0.to_record();
        assert_eq!(record.window(), 1);
        assert_eq!(record.averages(), 2);
        // Plain SGD has no tensors of its own.
        assert_eq!(record.num_tensors(), 0);
        let text = format!("{record:?}");
        says(&text, ["window: 1", "hooks: [\"ema\"]"]);

        let bytes = record.into_bytes().unwrap();
        let record = AmpRecord::from_bytes(bytes).unwrap();
        assert_eq!((record.window(), record.averages()), (1, 2));
        let record = record.without_window().without_averages();
        assert_eq!((record.window(), record.averages()), (0, 0));
        sgd().load_record(record).unwrap();
    }
    let plain = sgd().to_record();
    assert_eq!((plain.window(), plain.averages()), (0, 0));
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let (mut donor, _) = trained(false);
    let bytes = donor.into_bytes().unwrap();
    let window = |n: u32, rule| AccumulationConfig::new(n).with_skip_micro_batch(rule);
    let full = window(1, false);
    let other = window(2, true);
    let cases = [
        (sgd().with_ema(EmaConfig::new()), "no accumulation here"),
        (
            sgd().with_accumulation(2),
            "the hook `ema`, which is not here",
        ),
        (
            sgd()
                .with_ema(EmaConfig::new())
                .unwrap()
                .with_accumulation(full),
            "has 1 here",
        ),
        (
            sgd()
                .with_ema(EmaConfig::new())
                .unwrap()
                .with_accumulation(other),
            "`skip_micro_batch` false, but it is true here",
        ),
    ];
    for (optim, part) in cases {
        let mut optim = optim.unwrap();
        let mut model = Pair::zeros(DType::F32);
        model = optim.step(
            0.1,
            model.clone(),
            model.gradients([2.0; 6], [2.0; 4], 1024.0),
        );
        let before = pack(optim.into_bytes().unwrap());
        let error = optim.from_bytes(bytes.clone()).unwrap_err();
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(pack(optim.into_bytes().unwrap()), before);
    }
}

#[test]
fn a_damaged_record_leaves_window_and_averages_as_they_were() {
    let (donor, _) = trained(false);
    let mut victim = configured(false);
    let model = Pair::zeros(DType::F32);
    let grads = model.gradients([2.0; 6], [2.0; 4], 1024.0);
    let _ = victim.step(0.1, model, grads);
    let whole = donor.clone().into_bytes().unwrap();
    let load = |bytes| {
        let mut victim = victim.clone();
        let result = victim.from_bytes(bytes);
        (result, pack(victim.into_bytes().unwrap()))
    };
    let before = pack(victim.clone().into_bytes().unwrap());
    damaged(&whole, &before, load);
}

#[test]
fn plain_burn_and_the_scaler_read_the_same_file() {
    let folder = tempdir().unwrap();
    for rule in RULES {
        let mut run = Run::mixed(AdamConfig::new().init()).with_all(rule);
        run.train_until(22);
        run.save(folder.path());
        let path = folder.path().join("optim");
        let plain = AdamConfig::new()
            .init()
            .load_record(OptimizerRecord::load(&path).unwrap());
        // The same state, and only that.
        let expected = ModuleOptim::to_record(run.optim.optimizer()).unwrap();
        let found = pack(plain.to_record().into_bytes().unwrap());
        assert_eq!(found, pack(expected.into_bytes().unwrap()));
        let record = AmpRecord::load(&path).unwrap();
        assert_eq!(record.counters(), Some(run.optim.scaler().counters()));
    }
}

#[test]
fn an_older_record_starts_window_and_averages_afresh() {
    let (mut optim, model) = trained(false);
    let older = sgd().into_bytes().unwrap();
    let logged = captured(Level::Warn, || optim.from_bytes(older).unwrap());
    assert!(
        logged
            .iter()
            .any(|line| line.contains("no state of the hook `ema`")),
        "{logged:?}"
    );
    assert!(optim.window().unwrap().is_empty());
    assert_eq!(optim.ema().unwrap().updates(), 0);
    assert_eq!(optim.ema().unwrap().module(&model).values(), model.values());
}

#[test]
fn a_loaded_window_is_flushed_and_cloned_without_a_new_micro_batch() {
    for rule in RULES {
        let (mut straight, model) = trained(rule);
        let mut loaded = configured(rule);
        loaded.from_bytes(straight.into_bytes().unwrap()).unwrap();
        let mut copy = loaded.clone();
        let expected = straight.flush(0.1, model.clone()).values();
        assert_eq!(loaded.flush(0.1, model.clone()).values(), expected);
        assert_eq!(copy.flush(0.1, model.clone()).values(), expected);
        assert_ne!(model.values(), expected);
    }
}

/// Averages that go missing are not replaced without a word; where there were none yet, there is nothing to say.
#[test]
fn a_record_without_averages_starts_them_anew_and_says_so() {
    let rule = false;
    let with_ema = || sgd().with_ema(EmaConfig::new()).unwrap();
    let (mut trained, model) = trained(rule);
    let load = |mut optim: ScaledOptimizer<ModuleOptimizer>, record: AmpRecord| {
        let logged = captured(Level::Warn, || {
            optim.load_record(record.without_window()).unwrap();
        });
        (optim, logged.join("\n"))
    };
    let mut record = || trained.to_record().without_averages();

    // The averages here are lost.
    let mut running = with_ema();
    let _ = running.step(
        0.1,
        model.clone(),
        model.gradients([1.0; 6], [1.0; 4], 1024.0),
    );
    assert_eq!(running.ema().unwrap().updates(), 1);
    let (running, logged) = load(running, record());
    assert!(logged.contains("no state of the hook `ema`"), "{logged}");
    assert_eq!(running.ema().unwrap().updates(), 0);

    // Those of the run that is resumed were not kept.
    let (_, logged) = load(with_ema(), record());
    assert!(logged.contains("after 2 steps"), "{logged}");

    let (_, logged) = load(with_ema(), sgd().to_record());
    assert_eq!(logged, "");
    let (_, logged) = load(sgd(), record());
    assert_eq!(logged, "");
}

/// Sums that came from a file meet the model first when they are used.
#[test]
fn loaded_sums_of_another_dtype_are_refused_and_stay() {
    for rule in RULES {
        let mut donor = configured(rule);
        let double = Pair::zeros(DType::F64);
        let grads = double.gradients([1.0; 6], [1.0; 4], 1024.0);
        let _ = donor.step(0.1, double, grads);

        let mut optim = configured(rule);
        optim.from_bytes(donor.into_bytes().unwrap()).unwrap();
        let before = pack(optim.into_bytes().unwrap());
        let model = Pair::zeros(DType::F32);
        let grads = model.gradients([1.0; 6], [1.0; 4], 1024.0);
        let errors = [
            optim.try_flush(0.1, model.clone()).unwrap_err(),
            optim.try_step(0.1, model.clone(), grads).unwrap_err(),
        ];
        for error in errors {
            assert!(
                matches!(error.error, AmpError::ForeignRecord { .. }),
                "{error}"
            );
            says(&error, ["`weight`", "F64", "F32"]);
        }
        assert_eq!(pack(optim.into_bytes().unwrap()), before);
    }
}

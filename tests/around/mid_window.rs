//! Records of an open window and of averages: resumed exactly, refused where they do not fit, readable by plain Burn.

use tempfile::tempdir;

use crate::support::*;

const END: usize = 60;

/// Stops and resumes under both rules, at each of these points: between windows and inside them.
fn resume<O: ModuleOptim>(build: impl Fn() -> Run<O>) {
    for rule in RULES {
        let build = || build().with_all(rule);
        let start = build().snapshot();
        let folder = tempdir().unwrap();
        let mut open = 0;
        for stop in [20, 21, 22, 37] {
            let [half, end] = resumed(folder.path(), build, stop, END);
            open += u32::from(half.window > 0);
            assert_ne!(start.parameters, end.parameters);
            assert_ne!(end.averaged.as_ref(), Some(&end.parameters));
            let counters = end.counters;
            assert!(counters.skipped() + counters.dropped() >= 3, "{counters:?}");
            assert!(counters.stepped() >= 10, "{counters:?}");
        }
        assert!(open >= 2, "no stop was inside a window");
    }
}

mod a_run_goes_on_bit_for_bit {
    use super::*;

    #[test]
    fn adam() {
        resume(|| Run::mixed(AdamConfig::new().init()));
    }

    #[test]
    fn sgd() {
        resume(|| Run::mixed(SgdConfig::new().init()));
    }

    #[test]
    fn masters() {
        resume(|| Run::half(MasterWeights::new(AdamConfig::new().build())));
    }
}

fn with_ema() -> ScaledOptimizer {
    sgd().with_ema(EmaConfig::new())
}

fn configured(rule: bool) -> Trial {
    Trial::new(with_ema().with_accumulation(windows(2, rule)))
}

/// Two applied steps with averages, then one of two micro-batches.
fn trained(rule: bool) -> Trial {
    let mut run = configured(rule);
    (1..6).for_each(|k| run.step(([k as f32; 6], [0.5; 4])));
    assert_eq!(run.len(), 1);
    assert_eq!(run.optim.ema().unwrap().updates(), 2);
    run
}

#[test]
fn the_record_says_what_it_holds() {
    for rule in RULES {
        let record = trained(rule).optim.to_record();
        let holds = |record: &AmpRecord| (record.window(), record.averages());
        assert_eq!(holds(&record), (1, 2));
        // Plain SGD has no tensors of its own.
        assert_eq!(record.num_tensors(), 0);
        says(&format!("{record:?}"), ["window: 1", "hooks: [\"ema\"]"]);

        let bytes = record.into_bytes().unwrap();
        let record = AmpRecord::from_bytes(bytes).unwrap();
        assert_eq!(holds(&record), (1, 2));
        let record = record.without_window().without_averages();
        assert_eq!(holds(&record), (0, 0));
        sgd().load_record(record).unwrap();
        assert_eq!(holds(&sgd().to_record()), (0, 0));
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let bytes = trained(false).optim.into_bytes().unwrap();
    for (optim, part) in [
        (with_ema(), "no accumulation here"),
        (
            sgd().with_accumulation(2),
            "the hook `ema`, which is not here",
        ),
        (
            with_ema().with_accumulation(windows(1, false)),
            "has 1 here",
        ),
        (
            with_ema().with_accumulation(windows(2, true)),
            "`skip_micro_batch` false, but it is true here",
        ),
    ] {
        let mut run = Trial::new(optim);
        run.step(all(2.0));
        let before = run.record();
        let error = run.optim.from_bytes(bytes.clone()).unwrap_err();
        is_error(&error, "ForeignRecord", [part]);
        assert_eq!(run.record(), before);
    }
}

#[test]
fn plain_burn_and_the_scaler_read_the_same_file() {
    let folder = tempdir().unwrap();
    for rule in RULES {
        let mut run = Run::mixed(AdamConfig::new().init()).with_all(rule);
        run.train_until(22);
        run.save(folder.path());
        let path = folder.path().join("optim");
        let plain = OptimizerRecord::load(&path).unwrap();
        let plain = AdamConfig::new().init().load_record(plain).to_record();
        // The same state, and only that.
        let expected = ModuleOptim::to_record(run.optim.optimizer()).unwrap();
        let [found, expected] = [plain, expected].map(|r| pack(r.into_bytes().unwrap()));
        assert_eq!(found, expected);
        let record = AmpRecord::load(&path).unwrap();
        assert_eq!(record.counters(), Some(run.optim.scaler().counters()));
    }
}

#[test]
fn an_older_record_starts_window_and_averages_afresh() {
    let mut run = trained(false);
    let older = sgd().into_bytes().unwrap();
    let logged = captured(Level::Warn, || run.optim.from_bytes(older).unwrap());
    says(&logged.join("\n"), ["no state of the hook `ema`"]);
    assert_eq!((run.len(), run.optim.ema().unwrap().updates()), (0, 0));
    assert_eq!(run.averages(), run.values());
}

#[test]
fn a_loaded_window_is_flushed_and_cloned_without_a_new_micro_batch() {
    for rule in RULES {
        let (mut straight, mut loaded) = (trained(rule), configured(rule));
        let bytes = straight.optim.into_bytes().unwrap();
        loaded.optim.from_bytes(bytes).unwrap();
        loaded.model = straight.model.clone();
        let (mut copy, before) = (loaded.clone(), straight.values());
        let [straight, loaded, copy] = [&mut straight, &mut loaded, &mut copy].map(|run| {
            run.flush();
            run.values()
        });
        assert_eq!([&loaded, &copy], [&straight; 2]);
        assert_ne!(straight, before);
    }
}

/// Averages that go missing are not replaced without a word; where there were none yet, there is nothing to say.
#[test]
fn a_record_without_averages_starts_them_anew_and_says_so() {
    let load = |optim: &mut ScaledOptimizer, record: AmpRecord| {
        let record = record.without_window();
        captured(Level::Warn, || optim.load_record(record).unwrap()).join("\n")
    };
    let record = || trained(false).optim.to_record().without_averages();

    // Those of the run that is resumed were not kept.
    says(&load(&mut with_ema(), record()), ["after 2 steps"]);

    assert_eq!(load(&mut with_ema(), sgd().to_record()), "");
    assert_eq!(load(&mut sgd(), record()), "");
}

/// Sums that came from a file meet the model first when they are used.
#[test]
fn loaded_sums_of_another_dtype_are_refused_and_stay() {
    for rule in RULES {
        let mut donor = configured(rule).with_dtype(DType::F64);
        donor.step(all(1.0));

        let mut run = configured(rule);
        let bytes = donor.optim.into_bytes().unwrap();
        run.optim.from_bytes(bytes).unwrap();
        let (before, model) = (run.record(), Pair::zeros(DType::F32));
        let flushed = run.optim.try_flush(1.0, model).unwrap_err().error;
        for error in [flushed, run.refused(all(1.0))] {
            is_error(&error, "ForeignRecord", ["`weight`", "F64", "F32"]);
        }
        assert_eq!(run.record(), before);
    }
}

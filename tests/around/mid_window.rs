//! Records of an open window and of averages: resumed exactly, refused where they do not fit, readable by plain Burn.

use tempfile::tempdir;

use crate::support::*;

/// Stops and resumes under both rules, at each of these points: between windows and inside them.
fn resume<O: ModuleOptim>(build: impl Fn() -> Run<O>) {
    for rule in RULES {
        let build = || build().with_all(rule);
        let start = build().snapshot();
        let folder = tempdir().unwrap();
        let open = [20, 21, 22, 37].map(|stop| {
            let [half, end] = resumed(folder.path(), build, stop, 60);
            assert_ne!(start.parameters, end.parameters);
            assert_ne!(end.averaged.as_ref(), Some(&end.parameters));
            let counters = end.counters;
            assert!(counters.skipped() + counters.dropped() >= 3, "{counters:?}");
            assert!(counters.stepped() >= 10, "{counters:?}");
            half.window > 0
        });
        assert!(open.iter().filter(|open| **open).count() >= 2, "{open:?}");
    }
}

#[test]
fn a_run_goes_on_bit_for_bit() {
    resume(|| Run::mixed(AdamConfig::new().init()));
    resume(|| Run::mixed(SgdConfig::new().init()));
    resume(|| Run::half(MasterWeights::new(AdamConfig::new().build())));
}

fn with_ema() -> ScaledOptimizer {
    sgd().with_ema(EmaConfig::new())
}

/// Two applied steps with averages, then one of two micro-batches.
fn trained(rule: bool) -> Trial {
    let mut run = Trial::new(with_ema().with_accumulation(windows(2, rule)));
    (1..6).for_each(|k| run.step([f64::from(k); 10]));
    assert_eq!((run.window(), run.optim.ema().unwrap().updates()), (1, 2));
    run
}

#[test]
fn the_record_says_what_it_holds() {
    for rule in RULES {
        let record = trained(rule).optim.to_record();
        // Plain SGD has no tensors of its own.
        let holds = |record: &AmpRecord| (record.window(), record.averages(), record.num_tensors());
        assert_eq!(holds(&record), (1, 2, 0));
        says(&format!("{record:?}"), ["window: 1", "hooks: [\"ema\"]"]);
        let record = AmpRecord::from_bytes(record.into_bytes().unwrap()).unwrap();
        assert_eq!(holds(&record), (1, 2, 0));
        let record = record.without_window().without_averages();
        assert_eq!(holds(&record), (0, 0, 0));
        sgd().load_record(record).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let stored = trained(false).optim.to_record();
    let no_ema = "the hook `ema`, which is not here";
    for (optim, part) in [
        (with_ema(), "no accumulation here"),
        (sgd().with_accumulation(2), no_ema),
        (with_ema().with_accumulation(1), "has 1 here"),
    ] {
        let mut run = Trial::new(optim);
        run.step(ONES);
        let error = refused(&mut run.optim, |optim| optim.load_record(stored.clone()));
        is_error(&error, "ForeignRecord", [part]);
    }
}

/// The same state, and only that.
#[test]
fn plain_burn_and_the_scaler_read_the_same_file() {
    let folder = tempdir().unwrap();
    for rule in RULES {
        let mut run = Run::mixed(AdamConfig::new().init()).with_all(rule);
        run.train_until(22);
        run.save(folder.path());
        let path = folder.path().join("optim");
        let plain = AdamConfig::new().init().load(&path).unwrap();
        assert_eq!(state(&plain), state(run.optim.optimizer()));
        let record = AmpRecord::load(&path).unwrap();
        assert_eq!(record.counters(), Some(run.optim.scaler().counters()));
    }
}

/// Averages that go missing are not replaced without a word; where there were none yet, there is nothing to say. Those of the run that is
/// resumed were not kept, or are older than the hook.
#[test]
fn an_older_record_starts_window_and_averages_afresh() {
    let load = |optim: &mut ScaledOptimizer, record: AmpRecord| {
        captured(Level::Warn, || optim.load_record(record).unwrap()).join("\n")
    };
    let mut run = trained(false);
    let logged = load(&mut run.optim, sgd().to_record());
    says(&logged, ["no state of the hook `ema`"]);
    assert_eq!((run.window(), run.optim.ema().unwrap().updates()), (0, 0));
    assert_eq!(run.averages(), run.values());

    let record = || trained(false).optim.to_record().without_window();
    let bare = || record().without_averages();
    says(&load(&mut with_ema(), bare()), ["after 2 steps"]);
    assert_eq!(load(&mut with_ema(), sgd().to_record()), "");
    assert_eq!(load(&mut sgd(), bare()), "");
}

#[test]
fn an_open_window_is_cloned_and_each_goes_its_own_way() {
    for rule in RULES {
        let run = trained(rule);
        let before = run.values();
        // Without a new micro-batch.
        let ends = [run.clone(), run].map(|mut run| {
            assert_eq!(run.window(), 1);
            run.flush();
            run.values()
        });
        assert!(ends[0] != before && ends[0] == ends[1]);
    }
}

//! Checkpoints that earlier releases have written. Every folder of `golden/` must load for good.
//!
//! `cargo test --workspace --test learner -- --ignored write_golden` writes that of the present version.

use crate::support::*;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");

/// Copies the checkpoint of the first epoch.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("checkpoint")).unwrap();
    for file in ["model", "optim", "scheduler"] {
        let file = format!("checkpoint/{file}-1.bpk");
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

#[test]
fn checkpoints_of_every_release_load() {
    let folders: Vec<_> = fs::read_dir(GOLDEN).unwrap().collect();
    assert!(!folders.is_empty());
    for folder in folders {
        let folder = folder.unwrap().path();
        let stored = AmpRecord::load(folder.join("scaler.bpk")).unwrap();
        let counters = stored.counters().unwrap();
        assert!(counters.skipped() > 0);
        let resume = Resume::check(&folder, 1).unwrap();
        let record = resume.record().unwrap();
        let state = record.clone().without_averages();
        assert_eq!(state.bits(), stored.bits(), "{}", folder.display());

        let load = |file| Net::new(&Device::flex()).load_file(folder.join(file));
        let bare = load("checkpoint/model-1.bpk");
        assert!(all_finite(&bare));

        // The averages are those of the release, bit for bit.
        let mut ema = EmaConfig::new().init().unwrap();
        ema.load_record(record.clone()).unwrap();
        let finalized = values(&load("finalized.bpk"));
        assert!(values(&ema.module(&bare)) == finalized && values(&bare) != finalized);

        // And a run goes on from it.
        let own = temp_dir();
        copy(&folder, own.path());
        let run = Run::shuffled().until(2).resumed(1);
        let done = run.launch_in(&own, with(around));
        assert_eq!(done.counters().steps(), counters.steps() + 6);
        assert!(done.model.ema().unwrap().updates() > ema.updates());
    }
}

#[test]
#[ignore = "writes files into the repository"]
fn write_golden() {
    let golden = Path::new(GOLDEN).join(env!("CARGO_PKG_VERSION"));
    let done = Run::shuffled().until(1).launch(with(around));
    copy(done.folder.path(), &golden);
    let record = done.model.scaler().to_record();
    record.save(golden.join("scaler.bpk")).unwrap();
    let finalized = done.model.finalize();
    finalized.save_file(golden.join("finalized.bpk")).unwrap();
}

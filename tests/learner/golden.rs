//! Checkpoints that earlier releases have written. Every folder of `golden/` must load for good.
//!
//! `cargo test --workspace --test learner -- --ignored write_golden` writes that of the present version.

use burn::module::Module;
use burn_amp::{AmpRecord, EmaConfig, Resume, ScaledOptimizer};
use std::{fs, path::PathBuf};

use crate::{
    resume::shuffled_run,
    support::{Net, Run, all_finite, quiet, stored_state, temp_dir, values},
};
use burn::{optim::AdamConfig, tensor::Device};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

#[test]
fn checkpoints_of_every_release_load() {
    let folders: Vec<_> = fs::read_dir(folder()).unwrap().collect();
    assert!(!folders.is_empty());
    for folder in folders {
        let folder = folder.unwrap().path();
        let stored = AmpRecord::load(folder.join("scaler.bpk")).unwrap();
        let counters = stored.counters().unwrap();
        assert!(counters.skipped() > 0);
        let resume = Resume::check(&folder, 1).unwrap();
        let stored = stored.into_bytes().unwrap();
        assert_eq!(stored_state(&resume), stored, "{}", folder.display());

        let device = Device::flex();
        let file = folder.join("checkpoint/model-1.bpk");
        let bare = Net::new(&device).try_load_file(file).unwrap();
        assert!(all_finite(&bare));

        // The averages are those of the release, bit for bit.
        let mut ema = EmaConfig::new().init().unwrap();
        ema.load_record(resume.record().unwrap().clone()).unwrap();
        let finalized = Net::new(&device)
            .try_load_file(folder.join("finalized.bpk"))
            .unwrap();
        assert!(values(&ema.module(&bare)) == values(&finalized));
        assert!(values(&bare) != values(&finalized));

        // And a run goes on from it.
        let copy = temp_dir();
        fs::create_dir(copy.path().join("checkpoint")).unwrap();
        for file in ["model", "optim", "scheduler"] {
            let file = format!("checkpoint/{file}-1.bpk");
            fs::copy(folder.join(&file), copy.path().join(&file)).unwrap();
        }
        let run = Run {
            epochs: 2,
            resume: Some(1),
            ..shuffled_run()
        };
        let amp = run.amp();
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
        let optim = optim.with_ema(EmaConfig::new()).unwrap();
        let learner = run.learner_of(&amp, optim);
        let training = amp.training(run.training(copy.path()));
        let model = training.launch(learner).model;
        let steps = counters.steps() + 6;
        assert_eq!(model.scaler().counters().steps(), steps);
        assert!(model.ema().unwrap().updates() > ema.updates());
    }
}

#[test]
#[ignore = "writes files into the repository"]
fn write_golden() {
    let golden = folder().join(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(golden.join("checkpoint")).unwrap();
    let run = Run {
        epochs: 1,
        ..shuffled_run()
    };
    let amp = run.amp();
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let optim = optim.with_ema(EmaConfig::new()).unwrap();
    let learner = run.learner_of(&amp, optim);
    let folder = temp_dir();
    let model = quiet(run.training(folder.path())).launch(learner).model;
    for file in ["model", "optim", "scheduler"] {
        let file = format!("checkpoint/{file}-1.bpk");
        fs::copy(folder.path().join(&file), golden.join(&file)).unwrap();
    }
    let record = model.scaler().to_record();
    record.save(golden.join("scaler.bpk")).unwrap();
    let finalized = model.finalize();
    finalized.save_file(golden.join("finalized.bpk")).unwrap();
}

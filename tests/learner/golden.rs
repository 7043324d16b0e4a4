//! Checkpoints that earlier releases have written. Every folder of `golden/` must load for good.
//!
//! `cargo test -p burn-amp-learner-tests -- --ignored write_golden` writes that of the present version.

use burn::{module::Module, store::ModuleRecord, tensor::Device};
use burn_amp::{GradScalerConfig, GradScalerRecord, Scaled};
use std::{fs, path::PathBuf};

use crate::{
    resume::shuffled_run,
    support::{Net, Run, all_finite},
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

#[test]
fn checkpoints_of_every_release_load() {
    let folders: Vec<_> = fs::read_dir(folder()).unwrap().collect();
    assert!(!folders.is_empty());
    for folder in folders {
        let folder = folder.unwrap().path();
        let text = fs::read_to_string(folder.join("scaler.json")).unwrap();
        let stored: GradScalerRecord = serde_json::from_str(&text).unwrap();
        assert!(stored.counters().skipped() > 0);

        let net = Net::f16(&Device::flex().autodiff());
        let scaled = Scaled::new(net, GradScalerConfig::new().init().unwrap());
        let loaded = scaled.try_load_file(folder.join("model.bpk")).unwrap();
        assert_eq!(loaded.scaler().to_record(), stored, "{}", folder.display());

        let record = ModuleRecord::load(folder.join("model.bpk")).unwrap();
        let bare = Net::f16(&Device::flex().autodiff())
            .try_load_record(record.allow_unused(true))
            .unwrap();
        assert!(all_finite(&bare));
    }
}

#[test]
#[ignore = "writes files into the repository"]
fn write_golden() {
    let run = tempfile::tempdir().unwrap();
    let first = Run {
        epochs: 1,
        ..shuffled_run()
    };
    let model = first.launch(run.path()).model;
    let golden = folder().join(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(&golden).unwrap();
    fs::copy(
        run.path().join("checkpoint/model-1.bpk"),
        golden.join("model.bpk"),
    )
    .unwrap();
    let text = serde_json::to_string_pretty(&model.scaler().to_record()).unwrap();
    fs::write(golden.join("scaler.json"), text + "\n").unwrap();
}

//! Files of another kind, and no files at all.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::{TempDir, tempdir};

use crate::support::{Files, Small, adam, momentum, pack, quietly, sgd};

/// A folder with one file of each kind.
fn files() -> TempDir {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut optim = adam();
    let small = Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(path("adam.bpk")).unwrap();
    optim.optimizer().save(path("plain_adam.bpk")).unwrap();
    optim.scaler().save(path("scaler.bpk")).unwrap();
    let mut optim = momentum();
    Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(path("momentum.bpk")).unwrap();
    small.save_file(path("model.bpk")).unwrap();
    fs::write(path("text.bpk"), "epoch,loss\n1,0.5\n2,0.25\n").unwrap();
    fs::write(path("empty.bpk"), "").unwrap();
    fs::create_dir(path("folder.bpk")).unwrap();
    folder
}

/// Loads a file that does not fit and returns the error, which must name the file. Nothing may change.
fn refused<O: ModuleOptim>(mut optim: ScaledOptimizer<O>, path: &Path) -> AmpError {
    let small = Small::new(DType::F32).train(&mut optim, 5..9, &[6]);
    let before = pack(optim.into_bytes().unwrap());
    let result = quietly(|| optim.load(path)).expect("no panic");
    let error = result.unwrap_err();
    says(&error, [path.to_str().unwrap()]);
    assert_eq!(pack(optim.into_bytes().unwrap()), before, "{error}");
    small.train(&mut optim, 9..10, &[]);
    error
}

fn is_foreign(error: &AmpError) -> bool {
    matches!(error, AmpError::ForeignRecord { .. })
}

fn is_damaged(error: &AmpError) -> bool {
    matches!(error, AmpError::DamagedRecord { .. })
}

#[test]
fn the_state_of_another_optimizer() {
    let files = files();
    let path = |name: &str| files.path().join(name);
    for file in ["adam.bpk", "plain_adam.bpk"] {
        for error in [
            refused(momentum(), &path(file)),
            refused(sgd(), &path(file)),
        ] {
            assert!(is_foreign(&error), "{file}: {error}");
            assert!(error.to_string().contains("another optimizer"), "{error}");
        }
    }
    let error = refused(adam(), &path("momentum.bpk"));
    assert!(is_foreign(&error), "{error}");
}

/// The same optimizer with other settings: nothing of the state is lost, used or not.
#[test]
fn the_state_of_other_settings() {
    let files = files();
    let mut optim = sgd();
    optim.load(files.path().join("momentum.bpk")).unwrap();
    let kept = pack(optim.into_bytes().unwrap()).tensors;
    assert!(
        kept.keys().all(|name| name.contains("momentum")),
        "{kept:?}"
    );
    assert_eq!(kept.len(), 2);

    let folder = tempdir().unwrap();
    let path = folder.path().join("optim.bpk");
    let build = |amsgrad| {
        let optim = AdamConfig::new().with_amsgrad(amsgrad).init();
        ScaledOptimizer::new(optim, GradScalerConfig::new().init().unwrap())
    };
    let mut optim = build(true);
    Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(&path).unwrap();
    let mut without = build(false);
    without.load(&path).unwrap();
    assert_eq!(
        pack(without.into_bytes().unwrap()),
        pack(optim.into_bytes().unwrap())
    );
}

/// AdamW's state has Adam's names and meaning: Burn cannot tell them apart, and neither can we.
#[test]
fn adam_goes_on_as_adam_w() {
    let files = files();
    let optim = AdamWConfig::new().init();
    let mut optim = ScaledOptimizer::new(optim, GradScalerConfig::new().init().unwrap());
    optim.load(files.path().join("adam.bpk")).unwrap();
}

#[test]
fn a_scalers_file() {
    let files = files();
    let error = refused(adam(), &files.path().join("scaler.bpk"));
    assert!(is_foreign(&error), "{error}");
    says(&error, ["that of a `GradScaler`"]);
}

/// Burn's own loader panics on some of these, and takes others for an optimizer without state.
#[test]
fn a_models_file() {
    let files = files();
    for optim in [adam(), momentum(), sgd()] {
        let error = refused(optim, &files.path().join("model.bpk"));
        assert!(is_foreign(&error), "{error}");
        says(&error, ["not the record of an optimizer"]);
    }
}

#[test]
fn no_record_at_all() {
    let files = files();
    for file in ["text.bpk", "empty.bpk"] {
        let error = refused(adam(), &files.path().join(file));
        assert!(is_damaged(&error), "{error}");
    }
    for file in ["missing.bpk", "folder.bpk", "missing/optim.bpk"] {
        let error = refused(adam(), &files.path().join(file));
        assert!(matches!(error, AmpError::RecordIo { .. }), "{error}");
    }
    // Without an extension it is looked for under the name that `save` gives it.
    let error = adam().load(files.path().join("missing")).unwrap_err();
    assert!(error.to_string().contains("missing.bpk"), "{error}");
}

#[test]
fn to_a_scaler() {
    let files = files();
    let path = |name: &str| files.path().join(name);
    let mut scaler = GradScalerConfig::new().init().unwrap();
    scaler.set_loss_scale(8.0).unwrap();
    let before = scaler.bits();
    let is_missing = |error: &AmpError| matches!(error, AmpError::RecordIo { .. });
    for file in ["plain_adam", "model", "text", "empty", "missing", "folder"] {
        let path: PathBuf = path(&format!("{file}.bpk"));
        let error = scaler.load(&path).unwrap_err();
        let expected = match file {
            "plain_adam" | "model" => is_foreign(&error),
            "text" | "empty" => is_damaged(&error),
            _ => is_missing(&error),
        };
        assert!(expected, "{file}: {error:?}");
        says(&error, [path.to_str().unwrap()]);
        if file != "plain_adam" {
            assert_eq!(AmpRecord::load(&path).unwrap_err(), error);
        }
        assert_eq!(scaler.bits(), before);
    }
}

/// A type of one's own steps, and says what it lacks when it is to be stored.
struct Forgetful(ModuleOptimizer);

impl ModuleOptim for Forgetful {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.0.step(lr, module, grads)
    }
}

#[test]
fn an_optimizer_without_records() {
    let files = files();
    let path = files.path().join("adam.bpk");
    let before = fs::read(&path).unwrap();
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = ScaledOptimizer::new(Forgetful(AdamConfig::new().init()), scaler);
    Small::new(DType::F32).train(&mut optim, 0..3, &[1]);

    let error = optim.save(&path).unwrap_err();
    assert!(matches!(error, AmpError::RecordIo { .. }), "{error}");
    says(&error, ["`ModuleOptim::to_record`"]);
    assert_eq!(fs::read(&path).unwrap(), before);
    let record = optim.to_record();
    assert_eq!(
        record.clone().into_optimizer().err(),
        record.clone().into_bytes().err()
    );

    let error = optim.load(&path).unwrap_err();
    assert!(is_foreign(&error), "{error}");
    says(
        &error,
        ["`ModuleOptim::load_record`", path.to_str().unwrap()],
    );
    // Its scaler has a record of its own.
    let mut scaler = GradScalerConfig::new().init().unwrap();
    scaler.load_record(record).unwrap();
    assert_eq!(scaler.counters(), optim.scaler().counters());
    scaler.load_record(optim.scaler().to_record()).unwrap();
    assert_eq!(scaler.counters().skipped(), 1);
}

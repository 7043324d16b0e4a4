//! Files of another kind, and no files at all.

use crate::support::*;

/// A folder with one file of each kind.
fn files() -> TempDir {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut optim = adam();
    let small = Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(path("adam.bpk")).unwrap();
    optim.optimizer().save(path("plain_adam.bpk")).unwrap();
    optim.scaler().to_record().save(path("scaler.bpk")).unwrap();
    let mut optim = trained(momentum(), DType::F32, 0..3, &[]);
    optim.save(path("momentum.bpk")).unwrap();
    small.save_file(path("model.bpk")).unwrap();
    fs::write(path("text.bpk"), "epoch,loss\n1,0.5\n2,0.25\n").unwrap();
    fs::write(path("empty.bpk"), "").unwrap();
    fs::create_dir(path("folder.bpk")).unwrap();
    folder
}

/// Which optimizer refuses which file, and the error, which names the file too. Burn's own loader panics on some of these, and takes
/// others for an optimizer without state.
#[test]
fn to_an_optimizer() {
    let files = files();
    let (another, no_record) = ("another optimizer", "not the record of an optimizer");
    for (mut optim, file, variant, part) in [
        (momentum(), "adam", "ForeignRecord", another),
        (sgd(), "plain_adam", "ForeignRecord", another),
        (adam(), "momentum", "ForeignRecord", ""),
        (adam(), "scaler", "ForeignRecord", "that of a `GradScaler`"),
        (adam(), "model", "ForeignRecord", no_record),
        (sgd(), "model", "ForeignRecord", no_record),
        (adam(), "text", "DamagedRecord", ""),
        (adam(), "empty", "DamagedRecord", ""),
        (adam(), "missing", "RecordIo", ""),
        (adam(), "folder", "RecordIo", ""),
    ] {
        let small = Small::new(DType::F32).train(&mut optim, 5..9, &[6]);
        let path = files.path().join(format!("{file}.bpk"));
        let error = refused(&mut optim, |optim| optim.load(&path));
        is_error(&error, variant, [part, path.to_str().unwrap()]);
        if variant != "ForeignRecord" {
            // Whoever reads it.
            assert_eq!(AmpRecord::load(&path).unwrap_err(), error);
        }
        small.train(&mut optim, 9..10, &[]);
    }
    // Without an extension it is looked for under the name that `save` gives it.
    let error = adam().load(files.path().join("missing")).unwrap_err();
    assert!(error.to_string().contains("missing.bpk"), "{error}");
}

#[test]
fn to_a_scaler() {
    let files = files();
    let load = |name: &str| AmpRecord::load(files.path().join(name));
    is_error(&load("model.bpk").unwrap_err(), "ForeignRecord", ["model"]);
    let mut scaler = at_scale(8.0).init().unwrap();
    let before = scaler.bits();
    let plain = load("plain_adam.bpk").unwrap();
    let error = scaler.load_record(plain).unwrap_err();
    is_error(&error, "ForeignRecord", ["plain_adam.bpk"]);
    assert_eq!(scaler.bits(), before);
}

/// The same optimizer with other settings: nothing of the state is lost, used or not.
#[test]
fn the_state_of_other_settings() {
    let files = files();
    let mut optim = sgd();
    optim.load(files.path().join("momentum.bpk")).unwrap();
    let kept = contents(&mut optim).tensors;
    let mut names = kept.keys();
    assert!(names.all(|name| name.contains("momentum")), "{kept:?}");
    assert_eq!(kept.len(), 2);

    let (_folder, path) = place("optim.bpk");
    let build = |amsgrad| scaled(AdamConfig::new().with_amsgrad(amsgrad).init());
    let mut optim = trained(build(true), DType::F32, 0..3, &[]);
    optim.save(&path).unwrap();
    let mut without = build(false);
    without.load(&path).unwrap();
    assert_eq!(contents(&mut without), contents(&mut optim));

    // AdamW's state has Adam's names and meaning: Burn cannot tell them apart, and neither can we.
    let mut adam_w = scaled(AdamWConfig::new().init());
    adam_w.load(files.path().join("adam.bpk")).unwrap();
}

/// A type of one's own steps, and says what it lacks when it is to be stored.
#[test]
fn an_optimizer_without_records() {
    let files = files();
    let path = files.path().join("adam.bpk");
    let before = fs::read(&path).unwrap();
    let optim = scaled(Observed(AdamConfig::new().init(), drop));
    let mut optim = trained(optim, DType::F32, 0..3, &[1]);

    let error = optim.save(&path).unwrap_err();
    is_error(&error, "RecordIo", ["`ModuleOptim::to_record`"]);
    assert_eq!(fs::read(&path).unwrap(), before);
    let record = optim.to_record();
    let refused = record.clone().into_optimizer().err();
    assert_eq!(refused, record.clone().into_bytes().err());

    let error = optim.load(&path).unwrap_err();
    let parts = ["`ModuleOptim::load_record`", path.to_str().unwrap()];
    is_error(&error, "ForeignRecord", parts);
    // Its scaler has a record of its own.
    let mut scaler = default_scaler();
    scaler.load_record(record).unwrap();
    assert_eq!(scaler.counters(), optim.scaler().counters());
    scaler.load_record(optim.scaler().to_record()).unwrap();
    assert_eq!(scaler.counters().skipped(), 1);
}

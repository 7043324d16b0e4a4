//! Every way to store and load a scaler or an optimizer, undamaged.

use burn_amp_tests::prelude::*;
use tempfile::tempdir;

use crate::support::{Files, Small, adam, master_adam, pack};

/// A scaler with nothing at its default, some steps old.
fn seasoned() -> GradScaler {
    let scaler = GradScalerConfig::new()
        .with_init_scale(512.0)
        .with_growth_factor(4.0)
        .with_backoff_factor(0.25)
        .with_growth_interval(7)
        .with_min_scale(Some(2.0))
        .with_max_scale(Some(4096.0))
        .with_hysteresis(3)
        .with_consecutive_hysteresis(true)
        .init()
        .unwrap();
    let mut optim = ScaledOptimizer::new(adam().into_inner(), scaler);
    Small::new(DType::F32).train(&mut optim, 0..9, &[0, 1, 2, 8]);
    let scaler = optim.scaler().clone();
    assert_eq!(scaler.loss_scale(), 128.0);
    assert_eq!(scaler.growth_tracker(), 0);
    assert_eq!(scaler.counters().skipped(), 4);
    assert_eq!(scaler.counters().consecutive_skips(), 1);
    scaler
}

fn fresh() -> GradScaler {
    GradScalerConfig::new().init().unwrap()
}

#[test]
fn a_scaler_in_every_way() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("scaler");
    let scaler = seasoned();
    let (record, bits) = (scaler.to_record(), scaler.bits());
    let fresh = || scaler.config().init().unwrap();
    assert_eq!(record.schedule(), Some(&scaler.schedule()));
    assert_eq!(record.counters(), Some(scaler.counters()));

    let mut loaded = fresh();
    loaded.load_record(record.clone()).unwrap();
    assert_eq!(loaded.bits(), bits);

    let mut loaded = fresh();
    loaded.from_bytes(scaler.into_bytes().unwrap()).unwrap();
    assert_eq!(loaded.bits(), bits);

    scaler.save(&path).unwrap();
    assert!(folder.path().join("scaler.bpk").is_file());
    let mut loaded = fresh();
    loaded.load(&path).unwrap();
    assert_eq!(loaded.bits(), bits);
    assert_eq!(loaded.schedule(), scaler.schedule());

    record
        .clone()
        .save(folder.path().join("other.bpk"))
        .unwrap();
    let other = AmpRecord::load(folder.path().join("other")).unwrap();
    assert_eq!(other.bits(), bits);
    let bytes = record.into_bytes().unwrap();
    assert_eq!(AmpRecord::from_bytes(bytes).unwrap().bits(), bits);
}

/// What the program says anew is not in the record.
#[test]
fn settings_of_the_program_stay() {
    let mut loaded = GradScalerConfig::new()
        .with_enabled(false)
        .with_max_consecutive_skips(Some(3))
        .with_parameter_dtype_gradients(true)
        .init()
        .unwrap();
    loaded.load_record(seasoned().to_record()).unwrap();
    assert!(!loaded.is_enabled());
    assert_eq!(loaded.config().max_consecutive_skips, Some(3));
    assert!(loaded.config().parameter_dtype_gradients);
    // Disabled, it shows a scale of 1, but has taken the state over.
    assert_eq!(loaded.loss_scale(), 1.0);
    assert_eq!(loaded.schedule().scale(), 128.0);
}

#[test]
fn a_static_scale() {
    let fixed = GradScalerConfig::new()
        .with_init_scale(96.0)
        .with_dynamic(false)
        .init()
        .unwrap();
    let mut loaded = fixed.config().init().unwrap();
    loaded.from_bytes(fixed.into_bytes().unwrap()).unwrap();
    assert_eq!(loaded.schedule(), fixed.schedule());
}

/// A record taken between `step` and `update` knows the verdict.
#[test]
fn a_record_in_the_middle_of_an_iteration() {
    let mut scaler = fresh();
    let mut optim = adam().into_inner();
    let small = Small::new(DType::F32);
    let grads = small.gradients(0, scaler.loss_scale(), true);
    let grads = scaler.unscale(grads, &small).unwrap();
    scaler.step(&mut optim, 0.1, small, grads);

    let mut resumed = fresh();
    resumed.from_bytes(scaler.into_bytes().unwrap()).unwrap();
    assert_eq!(resumed.update().unwrap(), Some(StepOutcome::Skipped));
    scaler.update().unwrap();
    assert_eq!(resumed.loss_scale(), 32768.0);
    assert_eq!(resumed.bits(), scaler.bits());
}

/// Down to zero, as PyTorch's; that of a scaler stops where the scale has its last inverse in f32.
#[test]
fn every_state_that_can_be_reached_can_be_loaded() {
    let mut schedule = fresh().schedule();
    for _ in 0..200 {
        let json = serde_json::to_string(&schedule).unwrap();
        assert_eq!(serde_json::from_str::<LossScale>(&json).unwrap(), schedule);
        schedule = schedule.adjust(StepOutcome::Skipped);
    }
    assert_eq!(schedule.scale(), 0.0);

    let config = GradScalerConfig::new().with_max_consecutive_skips(None);
    let mut scaler = config.init().unwrap();
    let small = Small::new(DType::F32);
    for _ in 0..200 {
        let grads = scaler
            .unscale(small.gradients(0, scaler.loss_scale(), true), &small)
            .unwrap();
        scaler.discard(grads).unwrap();
        scaler.update().unwrap();
    }
    assert_eq!(scaler.loss_scale(), 2f32.powi(-127));
    let mut loaded = config.init().unwrap();
    loaded.from_bytes(scaler.into_bytes().unwrap()).unwrap();
    assert_eq!(loaded.schedule(), scaler.schedule());
}

#[test]
fn an_optimizer_in_every_way() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("optim");
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..9, &[2, 3]);
    let expected = pack(optim.into_bytes().unwrap());
    let check = |optim: &mut ScaledOptimizer<ModuleOptimizer>| {
        assert_eq!(pack(optim.into_bytes().unwrap()), expected);
        assert_eq!(optim.scaler().counters().skipped(), 2);
    };
    assert_eq!(expected.tensors.len(), 4);
    assert_eq!(optim.to_record().num_tensors(), 4);

    let mut loaded = adam();
    loaded.load_record(optim.to_record()).unwrap();
    check(&mut loaded);

    let mut loaded = adam();
    loaded.from_bytes(optim.into_bytes().unwrap()).unwrap();
    check(&mut loaded);

    optim.save(&path).unwrap();
    assert!(folder.path().join("optim.bpk").is_file());
    let mut loaded = adam();
    loaded.load(&path).unwrap();
    check(&mut loaded);

    let record = AmpRecord::load(&path).unwrap();
    assert_eq!(record.counters(), Some(optim.scaler().counters()));
    record.save(folder.path().join("again.bpk")).unwrap();
    let mut loaded = adam();
    loaded.load(folder.path().join("again.bpk")).unwrap();
    check(&mut loaded);

    let bytes = AmpRecord::load(&path).unwrap().into_bytes().unwrap();
    let record = AmpRecord::from_bytes(bytes).unwrap();
    let mut loaded = adam();
    loaded.load_record(record).unwrap();
    check(&mut loaded);
}

/// Through a borrow, as through the optimizer itself.
#[test]
fn a_borrowed_optimizer() {
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..4, &[]);
    let bytes = optim.into_bytes().unwrap();
    let mut inner = adam().into_inner();
    let scaler = optim.scaler().config().init().unwrap();
    let mut borrowed = ScaledOptimizer::new(&mut inner, scaler);
    borrowed.from_bytes(bytes.clone()).unwrap();
    assert_eq!(pack(borrowed.into_bytes().unwrap()), pack(bytes));
    assert_eq!(
        pack(inner.into_bytes().unwrap()),
        pack(optim.optimizer().into_bytes().unwrap())
    );
}

/// Before the first step there is no state, and loading that empties an optimizer that has one.
#[test]
fn an_optimizer_without_state() {
    let bytes = adam().into_bytes().unwrap();
    assert!(pack(bytes.clone()).tensors.is_empty());
    let mut loaded = adam();
    Small::new(DType::F32).train(&mut loaded, 0..4, &[1]);
    loaded.from_bytes(bytes.clone()).unwrap();
    assert_eq!(pack(loaded.into_bytes().unwrap()), pack(bytes));
}

/// One file for the scaler too: it can be read alone.
#[test]
fn a_scaler_reads_the_file_of_an_optimizer() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("optim.bpk");
    let mut optim = master_adam();
    Small::new(DType::F16).train(&mut optim, 0..9, &[2, 3]);
    optim.save(&path).unwrap();
    let mut scaler = optim.scaler().config().init().unwrap();
    scaler.load(&path).unwrap();
    assert_eq!(scaler.bits(), optim.scaler().bits());
    let bytes = optim.into_bytes().unwrap();
    let record = AmpRecord::from_bytes(bytes).unwrap();
    assert_eq!(record.schedule(), Some(&optim.scaler().schedule()));
    assert_eq!(record.counters(), Some(optim.scaler().counters()));
}

/// An old file is replaced, and only by a whole one.
#[test]
fn a_save_replaces_the_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("optim.bpk");
    let mut optim = adam();
    optim.save(&path).unwrap();
    let small = Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(&path).unwrap();
    small.train(&mut optim, 3..4, &[]);
    let mut loaded = adam();
    loaded.load(&path).unwrap();
    assert_eq!(loaded.scaler().counters().steps(), 3);
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "something was left behind");
}

/// An error is one that a program can match on and print.
#[test]
fn errors_are_values() {
    fn check<E: std::error::Error + Send + Sync + Clone + PartialEq + 'static>(_: E) {}
    check(AmpError::EmptyState);
}

/// What `save` wrote, `load` reads, whatever else has the name without the extension.
#[test]
fn neighbours_of_the_same_name_do_not_matter() {
    let folder = tempdir().unwrap();
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..3, &[]);

    let path = folder.path().join("run");
    std::fs::create_dir(&path).unwrap();
    optim.save(&path).unwrap();
    assert!(folder.path().join("run.bpk").is_file());
    let mut loaded = adam();
    loaded.load(&path).unwrap();
    assert_eq!(loaded.scaler().counters().steps(), 3);
}

/// A file from before, without an extension, is not what was saved last.
#[test]
fn an_old_file_without_extension_does_not_win() {
    let folder = tempdir().unwrap();
    let (path, elsewhere) = (folder.path().join("optim"), folder.path().join("old.bpk"));
    adam().save(&elsewhere).unwrap();
    std::fs::rename(elsewhere, &path).unwrap();

    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(&path).unwrap();
    let mut loaded = adam();
    loaded.load(&path).unwrap();
    assert_eq!(loaded.scaler().counters().steps(), 3);
}

/// Without any other, a file needs no extension to be loaded.
#[test]
fn a_file_without_extension_can_be_loaded() {
    let folder = tempdir().unwrap();
    let (path, elsewhere) = (folder.path().join("optim"), folder.path().join("old.bpk"));
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    optim.save(&elsewhere).unwrap();
    std::fs::rename(elsewhere, &path).unwrap();
    let mut loaded = adam();
    loaded.load(&path).unwrap();
    assert_eq!(loaded.scaler().counters().steps(), 3);
}

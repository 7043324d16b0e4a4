//! Every way to store and load a scaler or an optimizer, undamaged.

use crate::support::*;

/// A scaler with nothing at its default, some steps old.
fn seasoned() -> GradScaler {
    let scaler = crate::golden::recipe::settings().init().unwrap();
    let optim = ScaledOptimizer::new(adam().into_inner(), scaler);
    let optim = trained(optim, DType::F32, 0..9, &[0, 1, 2, 3, 8]);
    let (scaler, counters) = (optim.scaler().clone(), optim.scaler().counters());
    assert_eq!((scaler.loss_scale(), scaler.growth_tracker()), (256.0, 0));
    assert_eq!((counters.skipped(), counters.consecutive_skips()), (5, 1));
    scaler
}

/// A record as it is, and by every way through which one goes. The scaler's state is in each, and can be read alone.
fn in_every_way(record: &AmpRecord, scaler: &GradScaler) -> [AmpRecord; 3] {
    let (folder, path) = place("record");
    record.clone().save(&path).unwrap();
    assert!(folder.path().join("record.bpk").is_file());
    let from_file = AmpRecord::load(&path).unwrap();
    let bytes = from_file.clone().into_bytes().unwrap();
    let from_bytes = AmpRecord::from_bytes(bytes).unwrap();
    let records = [record.clone(), from_file, from_bytes];
    for record in &records {
        assert_eq!(record.schedule(), Some(&scaler.schedule()));
        assert_eq!(record.counters(), Some(scaler.counters()));
        let mut loaded = scaler.config().init().unwrap();
        loaded.load_record(record.clone()).unwrap();
        assert_eq!(loaded.bits(), scaler.bits());
        assert_eq!(loaded.schedule(), scaler.schedule());
    }
    records
}

#[test]
fn a_scaler_in_every_way() {
    let fixed = at_scale(96.0).with_dynamic(false).init().unwrap();
    for scaler in [seasoned(), fixed] {
        for record in in_every_way(&scaler.to_record(), &scaler) {
            assert_eq!(record.bits(), scaler.bits());
        }
    }
}

#[test]
fn an_optimizer_in_every_way() {
    type Load<'a> = &'a dyn Fn(&mut ScaledOptimizer<MasterWeights>) -> Result<(), AmpError>;
    let (_folder, path) = place("optim");
    let mut optim = trained(master_adam(), DType::F16, 0..9, &[2, 3]);
    let expected = contents(&mut optim);
    let check = |load: Load| {
        let mut loaded = master_adam();
        load(&mut loaded).unwrap();
        assert_eq!(contents(&mut loaded), expected);
    };
    let record = optim.to_record();
    assert_eq!((record.num_tensors(), expected.tensors.len()), (6, 6));
    for record in in_every_way(&record, optim.scaler()) {
        check(&|loaded| loaded.load_record(record.clone()));
    }
    let bytes = optim.into_bytes().unwrap();
    check(&|loaded| loaded.from_bytes(bytes.clone()));
    optim.save(&path).unwrap();
    check(&|loaded| loaded.load(&path));
}

/// Through a borrow, as through the optimizer itself: gradients may be wider than parameters, too.
#[test]
fn a_borrowed_optimizer() {
    let train = |optim| trained(optim, DType::BF16, 0..3, &[1]);
    let mut owned = train(master_adam());
    let mut inner = master_adam().into_inner();
    let mut borrowed = trained(scaled(&mut inner), DType::BF16, 0..3, &[1]);
    assert_eq!(contents(&mut borrowed), contents(&mut owned));
    let later = train(owned).into_bytes().unwrap();
    borrowed.from_bytes(later.clone()).unwrap();
    assert_eq!(contents(&mut borrowed), pack(later));
}

/// Before the first step there is no state, and loading that empties an optimizer that has one.
#[test]
fn an_optimizer_without_state() {
    let bytes = adam().into_bytes().unwrap();
    assert!(pack(bytes.clone()).tensors.is_empty());
    let mut loaded = trained(adam(), DType::F32, 0..4, &[1]);
    loaded.from_bytes(bytes.clone()).unwrap();
    assert_eq!(contents(&mut loaded), pack(bytes));
}

/// An error is one that a program can match on and print.
#[test]
fn errors_are_values() {
    fn check<E: std::error::Error + Send + Sync + Clone + PartialEq + 'static>(_: E) {}
    check(AmpError::EmptyState);
}

/// What `save` wrote, `load` reads, whatever else has the name without the extension, or had the name before.
#[test]
fn what_was_saved_last_is_loaded() {
    let save = |path: &Path, steps| {
        let mut optim = trained(adam(), DType::F32, 0..steps, &[]);
        optim.save(path).unwrap();
    };
    let loaded_steps = |path: &Path| {
        let record = AmpRecord::load(path).unwrap();
        record.counters().unwrap().steps()
    };
    let save_as = |path: &Path, steps| {
        save(&path.with_extension("old.bpk"), steps);
        fs::rename(path.with_extension("old.bpk"), path).unwrap();
    };
    // What is in the folder before, and the names by which it is saved and loaded.
    for (before, name, files) in [
        (None, "optim", 1),
        (Some("optim.bpk"), "optim.bpk", 1),
        (Some("a folder"), "optim", 2),
        (Some("optim"), "optim", 2),
    ] {
        let folder = tempdir().unwrap();
        match before {
            None => {}
            Some("a folder") => fs::create_dir(folder.path().join("optim")).unwrap(),
            Some(file) => save_as(&folder.path().join(file), 1),
        }
        let path = folder.path().join(name);
        save(&path, 3);
        assert!(folder.path().join("optim.bpk").is_file());
        assert_eq!(loaded_steps(&path), 3, "{before:?}");
        assert_eq!(names(folder.path()).len(), files, "{before:?}");
    }
    // Without any other, a file needs no extension to be loaded.
    let (_folder, path) = place("optim");
    save_as(&path, 3);
    assert_eq!(loaded_steps(&path), 3);
}

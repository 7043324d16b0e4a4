//! Every way to store and load a scaler or an optimizer, undamaged; and a run that goes on from there is the one that did not stop, bit for bit.

use crate::support::*;

/// A scaler with nothing at its default, some steps old.
fn seasoned() -> Scaler {
    let scaler = GradScaler::new(crate::golden::recipe::settings()).unwrap();
    let optim = ScaledOptimizer::new(adam().into_inner(), scaler);
    let optim = trained(optim, DType::F32, 0..9, &[0, 1, 2, 3, 8]);
    let (scaler, counters) = (optim.scaler().clone(), optim.scaler().counters());
    assert_eq!((scaler.loss_scale(), scaler.growth_tracker()), (256.0, 0));
    assert_eq!((counters.skipped(), counters.consecutive_skips()), (5, 1));
    scaler
}

/// A record as it is, and by every way through which one goes. The scaler's state is in each, and can be read alone.
fn in_every_way(record: &AmpRecord, scaler: &Scaler) -> [AmpRecord; 3] {
    let (folder, path) = place("record");
    record.clone().save(&path).unwrap();
    assert!(folder.path().join("record.bpk").is_file());
    let from_file = AmpRecord::load(&path).unwrap();
    let bytes = from_file.clone().into_bytes().unwrap();
    let records = [
        record.clone(),
        from_file,
        AmpRecord::from_bytes(bytes).unwrap(),
    ];
    for record in &records {
        assert_eq!(record.schedule(), Some(&scaler.schedule()));
        assert_eq!(record.counters(), Some(scaler.counters()));
        let mut loaded = GradScaler::new(scaler.config()).unwrap();
        loaded.load_record(record.clone()).unwrap();
        assert_eq!(
            (loaded.bits(), loaded.schedule()),
            (scaler.bits(), scaler.schedule())
        );
    }
    records
}

#[test]
fn a_scaler_in_every_way() {
    let fixed: Scaler = GradScaler::new(at_scale(96.0).with_dynamic(false))
        .unwrap()
        .into();
    for scaler in [seasoned(), fixed] {
        for record in in_every_way(&scaler.to_record(), &scaler) {
            assert_eq!(record.bits(), scaler.bits());
        }
    }
}

/// Through a borrow, too, as through the optimizer itself; and before the first step there is no state, which empties an optimizer that has one.
#[test]
fn an_optimizer_in_every_way() {
    let (_folder, path) = place("optim");
    let mut optim = trained(master_adam(), DType::F16, 0..9, &[2, 3]);
    let expected = contents(&mut optim);
    let record = optim.to_record();
    // With the index of our own states.
    assert_eq!((record.num_tensors(), expected.tensors.len()), (6, 7));
    let mut loaded = in_every_way(&record, optim.scaler())
        .map(|record| {
            let mut loaded = master_adam();
            loaded.load_record(record).unwrap();
            loaded
        })
        .to_vec();
    loaded.extend([master_adam(), master_adam()]);
    loaded[3].from_bytes(optim.into_bytes().unwrap()).unwrap();
    optim.save(&path).unwrap();
    loaded[4].load(&path).unwrap();
    let mut inner = master_adam().into_inner();
    let mut borrowed = trained(scaled(&mut inner), DType::F16, 0..3, &[1]);
    borrowed.load(&path).unwrap();
    assert_eq!(contents(&mut borrowed), expected);
    let empty = master_adam().into_bytes().unwrap();
    for mut loaded in loaded {
        assert_eq!(contents(&mut loaded), expected);
        loaded.from_bytes(empty.clone()).unwrap();
        assert!(state(loaded.optimizer()).tensors.is_empty());
        assert_eq!(contents(&mut loaded), pack(empty.clone()));
    }
}

/// What `save` wrote, `load` reads, whatever else has the name without the extension, or had the name before.
#[test]
fn what_was_saved_last_is_loaded() {
    let save = |path: &Path, steps| {
        let mut optim = trained(adam(), DType::F32, 0..steps, &[]);
        optim.save(path).unwrap();
    };
    let save_as = |path: &Path, steps| {
        save(&path.with_extension("old.bpk"), steps);
        fs::rename(path.with_extension("old.bpk"), path).unwrap();
    };
    // What is in the folder before, and the names by which it is saved and loaded, twice.
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
        for steps in 2..4 {
            save(&path, steps);
            let file = path.with_extension("bpk");
            assert!(file.is_file());
            let record = AmpRecord::load(&path).unwrap();
            assert_eq!(
                record.counters().unwrap().steps(),
                steps as u64,
                "{before:?}"
            );
            assert_eq!(names(folder.path()).len(), files, "{before:?}");
        }
    }
    // Without any other, a file needs no extension to be loaded.
    let (_folder, path) = place("optim");
    save_as(&path, 3);
    assert_eq!(
        AmpRecord::load(&path).unwrap().counters().unwrap().steps(),
        3
    );
}

/// The second half in a process that has never seen the first, and in this one: of f32 copies of f16 parameters, with overflows, steps and a scale
/// that grows. `tests/oracle` draws runs that are saved and loaded anywhere.
#[test]
fn a_run_goes_on_in_a_new_process() {
    let build = || Run::half(MasterWeights::new(AdamWConfig::new().build()));
    let loaded = |folder: &Path, done| {
        let mut run = build();
        run.load(folder, done);
        run
    };
    let (half, whole) = (30, 60);
    if let Some(folder) = child_folder() {
        let mut run = loaded(&folder, half);
        run.train_until(whole);
        return run.save(&folder.join("end"));
    }
    let folder = tempdir().unwrap();
    fs::create_dir(folder.path().join("end")).unwrap();
    let [at_half, end] = resumed(folder.path(), build, half, whole);
    for (from, to) in [(&build().snapshot(), &at_half), (&at_half, &end)] {
        let skipped = to.counters.skipped() - from.counters.skipped();
        let applied = to.counters.stepped() - from.counters.stepped();
        assert!(skipped >= 2 && applied >= 15, "{skipped} of {applied}");
        // Each skip that the scale causes halves it: where it is higher than that, it grew.
        let bad_losses = to.counters.bad_losses() - from.counters.bad_losses();
        let lowered = from.scale * 0.5f32.powi((skipped - bad_losses) as i32);
        assert!(to.scale > lowered, "the scale never grew");
        assert_ne!(from.parameters, to.parameters);
    }
    let test = concat!(module_path!(), "::a_run_goes_on_in_a_new_process");
    let output = child(test, folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(loaded(&folder.path().join("end"), whole).snapshot(), end);
}

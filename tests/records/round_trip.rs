//! Every way to store and load an optimizer or its scaler, undamaged; and a run that goes on from there is the one that did not stop, bit for bit.

use crate::golden::recipe::{masters, settings};
use crate::support::*;

/// A record as it is, and by every way through which one goes; the scaler's state is in each, and can be read alone. With no setting at its default.
/// Through a borrow, too, as through the optimizer itself; and before the first step there is no state, which empties an optimizer that has one.
#[test]
fn an_optimizer_in_every_way() {
    let (folder, path) = place("optim");
    let mut optim = trained(masters(), DType::F16, 0..9, &[2, 3, 8]);
    let expected = contents(&mut optim);
    let record = optim.to_record();
    // With the index of our own states.
    assert_eq!((record.num_tensors(), expected.tensors.len()), (6, 7));
    let other = folder.path().join("record");
    record.clone().save(&other).unwrap();
    optim.save(&path).unwrap();
    assert!(other.with_extension("bpk").is_file() && names(folder.path()).len() == 2);
    let [saved, of_record] = [&path, &other].map(|path| AmpRecord::load(path).unwrap());
    let from_bytes = AmpRecord::from_bytes(saved.bits()).unwrap();
    let empty = masters().into_bytes().unwrap();
    let scaler = optim.scaler();
    for record in [record, saved, of_record, from_bytes] {
        let stored = (record.schedule().cloned(), record.counters());
        assert_eq!(stored, (Some(scaler.schedule()), Some(scaler.counters())));
        let mut alone = GradScaler::new(scaler.config()).unwrap();
        alone.load_record(record.clone()).unwrap();
        assert_eq!(alone.bits(), scaler.bits());
        let mut loaded = masters();
        loaded.load_record(record).unwrap();
        assert_eq!(contents(&mut loaded), expected);
        loaded.from_bytes(empty.clone()).unwrap();
        assert_eq!(contents(&mut loaded), pack(empty.clone()));
    }
    let mut inner = masters().into_inner();
    let borrowed = ScaledOptimizer::new(&mut inner, GradScaler::new(settings()).unwrap());
    let mut borrowed = trained(borrowed, DType::F16, 0..3, &[1]);
    borrowed.load(&path).unwrap();
    assert_eq!(contents(&mut borrowed), expected);
}

/// What `save` wrote, `load` reads, whatever else has the name without the extension, or had the name before.
#[test]
fn what_was_saved_last_is_loaded() {
    let after = |steps| trained(adam(), DType::F32, 0..steps, &[]);
    let loaded = |path: &Path| AmpRecord::load(path).unwrap().counters().unwrap().steps();
    // What is in the folder before, and the names by which it is saved and loaded, twice.
    for (before, name, files) in [
        ("", "optim", 1),
        ("optim.bpk", "optim.bpk", 1),
        ("a folder", "optim", 2),
        ("optim", "optim", 2),
    ] {
        let (folder, path) = place(name);
        match before {
            "" => {}
            "a folder" => fs::create_dir(&path).unwrap(),
            file => {
                let bytes = after(1).into_bytes().unwrap().to_vec();
                fs::write(folder.path().join(file), bytes).unwrap();
                // Without any other, a file needs no extension to be loaded.
                assert_eq!(loaded(&path), 1);
            }
        }
        for steps in 2..4 {
            after(steps).save(&path).unwrap();
            assert!(path.with_extension("bpk").is_file());
            assert_eq!(loaded(&path), steps as u64, "{before}");
            assert_eq!(names(folder.path()).len(), files, "{before}");
        }
    }
}

/// In files, by new objects: with f32 copies of f16 parameters, on any device. `tests/oracle` draws runs that are saved and loaded anywhere.
#[test]
fn a_run_goes_on() {
    let folder = tempdir().unwrap();
    let build = || Run::half(MasterWeights::new(AdamWConfig::new().build()));
    let [half, end] = resumed(folder.path(), build, 30, 60);
    assert!(half.counters.skipped() >= 2 && end.counters.stepped() >= 30);
}

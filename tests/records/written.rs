//! How a file gets to its place: what can be loaded, with the permissions it had, past what killed runs have left.

use burn_pack::Scalar;
use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};
use tempfile::tempdir;

use crate::support::*;

/// One scalar, many times.
#[derive(Module, Debug)]
struct Many {
    parameters: Vec<Param<Tensor<1>>>,
}

impl Many {
    fn new(count: u64, dtype: DType) -> Self {
        let device = (&Device::flex().autodiff(), dtype);
        let param = |id: u64| {
            let value = Tensor::from_data([0.5], device).require_grad();
            // Ids as Burn makes them: numbers of up to 20 digits.
            Param::initialized(ParamId::from(id.wrapping_mul(0x9e37_79b9_7f4a_7c15)), value)
        };
        Self {
            parameters: (1..=count).map(param).collect(),
        }
    }

    fn gradients(&self) -> GradientsParams {
        gradients(self, 0, 1.0, FloatDType::F32)
    }
}

/// Burn's reader takes 100,000 tensors.
#[test]
#[ignore = "slow"]
fn sweep_more_tensors_than_can_be_loaded_replace_no_file() {
    let (folder, path) = place("window.bpk");
    let config = AccumulationConfig::new(9);
    let mut window = config.init().unwrap();
    let accumulate = |window: &mut AccumulationWindow, count| {
        let many = Many::new(count, DType::F32);
        let mut scaler = GradScalerConfig::new().init().unwrap();
        scaler.accumulate(window, many.gradients(), &many).unwrap();
    };
    accumulate(&mut window, 100_000);
    window.save(&path).unwrap();
    accumulate(&mut window, 100_001);
    let error = window.save(&path).unwrap_err();
    is_error(&error, "RecordIo", ["100001 tensors", "window.bpk"]);
    let error = window.into_bytes().unwrap_err();
    is_error(&error, "RecordIo", ["100001 tensors"]);
    let mut window = config.init().unwrap();
    window.load(&path).unwrap();
    assert_eq!(window.gradients(), 100_000);
    assert_eq!(names(folder.path()), ["window.bpk"]);

    // Of an optimizer that has two tensors for each parameter.
    let many = Many::new(50_001, DType::F32);
    let mut optim = adam();
    optim.step(0.1, many.clone(), many.gradients());
    is_error(&optim.into_bytes().unwrap_err(), "RecordIo", []);
}

/// Burn loads all state in one float dtype.
#[test]
fn what_burn_would_round_replaces_no_file() {
    let (_folder, path) = place("optim.bpk");
    let mut optim = adam();
    optim.save(&path).unwrap();
    let good = fs::read(&path).unwrap();
    let many = Many::new(2, DType::F64);
    let grads = gradients(&many, 0, 1.0, FloatDType::F64);
    optim.step(0.1, many, grads);
    let error = optim.save(&path).unwrap_err();
    is_error(&error, "RecordIo", ["f64", "configure(FloatDType::F64)"]);
    assert_eq!(fs::read(&path).unwrap(), good);
}

/// Where the default device is one of f64, a model in f64 goes on bit for bit.
#[test]
fn f64_resumes_where_it_is_the_default() {
    let folder = tempdir().unwrap();
    let mut child = child("written::trains_in_f64", folder.path());
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(folder.path().join("done").exists());
}

#[test]
#[ignore = "run by f64_resumes_where_it_is_the_default"]
fn trains_in_f64() {
    let Some(folder) = folder() else { return };
    Device::default().configure(FloatDType::F64).unwrap();
    let path = folder.join("optim.bpk");
    let step = |optim: &mut ScaledOptimizer<ModuleOptimizer>, many: Many, step| {
        let grads = gradients(&many, step, 0.1, FloatDType::F64);
        optim.step(0.1, many, grads)
    };
    let (mut optim, mut many) = (adam(), Many::new(2, DType::F64));
    for count in 0..3 {
        many = step(&mut optim, many, count);
    }
    optim.save(&path).unwrap();
    let mut resumed = adam();
    resumed.load(&path).unwrap();
    let mut again = many.clone();
    for count in 3..6 {
        many = step(&mut optim, many, count);
        again = step(&mut resumed, again, count);
    }
    let saved = contents(&mut optim);
    let mut tensors = saved.tensors.values();
    assert!(tensors.all(|(_, values)| values.0 == DType::F64));
    assert_eq!(contents(&mut resumed), saved);
    assert_eq!(parameters(&again), parameters(&many));
    fs::write(folder.join("done"), "").unwrap();
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Saves in a process that the system kills in the middle of it.
    fn killed_save(folder: &Path) {
        let output = limited("atomic::saves_once", folder, "ulimit -f 8;");
        assert_eq!(output.status.code(), None, "it should have been killed");
    }

    #[test]
    fn a_private_file_is_never_open_to_others() {
        let (folder, path) = place("optim.bpk");
        momentum().save(&path).unwrap();
        for wanted in [0o600, 0o400, 0o640] {
            set_mode(&path, wanted);
            momentum().save(&path).unwrap();
            assert_eq!(mode(&path), wanted);
            killed_save(folder.path());
            let scratch = scratch_files(folder.path());
            assert_eq!(scratch.len(), 1, "{scratch:?}");
            // While it is written its owner can read and write it.
            assert_eq!(mode(&scratch[0]), wanted | 0o600);
        }
        // More than the process would give a new file.
        set_mode(&path, 0o666);
        momentum().save(&path).unwrap();
        assert_eq!(mode(&path), 0o666);
    }

    #[test]
    fn what_a_killed_save_has_left_is_removed_by_the_next() {
        let (folder, path) = place("optim.bpk");
        killed_save(folder.path());
        killed_save(folder.path());
        // One that is still being written, as its lock says, and files of others.
        let left = scratch_files(folder.path()).remove(0);
        let name = left.file_name().unwrap().to_str().unwrap();
        let busy = folder.path().join(name.replace("-0.", "-77."));
        fs::write(&busy, "busy").unwrap();
        let lock = File::open(&busy).unwrap();
        lock.lock().unwrap();
        let foreign = [".optim.bpk.swp", "notes.burn-amp.tmp", "other.bpk"];
        for name in foreign {
            fs::write(folder.path().join(name), "kept").unwrap();
        }

        momentum().save(&path).unwrap();
        assert!(!left.exists());
        let mut found = names(folder.path());
        found.sort();
        let busy_name = busy.file_name().unwrap().to_str().unwrap();
        let mut expected = vec!["optim.bpk", busy_name];
        expected.extend(foreign);
        expected.sort();
        assert_eq!(found, expected);
        drop(lock);
        momentum().save(&path).unwrap();
        assert!(!busy.exists());
    }

    #[test]
    fn a_symbolic_link_is_followed() {
        let folder = tempdir().unwrap();
        let real = folder.path().join("real");
        fs::create_dir(&real).unwrap();
        let link = folder.path().join("latest.bpk");
        symlink("real/optim.bpk", &link).unwrap();
        let further = folder.path().join("further.bpk");
        symlink(&link, &further).unwrap();
        let mut optim = adam();
        // The first save makes the file that the link points at.
        for path in [&link, &further, &link.with_extension("")] {
            Small::new(DType::F32).train(&mut optim, 0..1, &[]);
            optim.save(path).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert!(fs::symlink_metadata(&further).unwrap().is_symlink());
            assert_eq!(names(&real), ["optim.bpk"]);
            let found = AmpRecord::load(real.join("optim.bpk")).unwrap();
            assert_eq!(found.counters(), Some(optim.scaler().counters()));
        }
        let circle = folder.path().join("circle.bpk");
        symlink("circle.bpk", &circle).unwrap();
        is_error(&optim.save(&circle).unwrap_err(), "RecordIo", []);
        assert!(fs::symlink_metadata(&circle).unwrap().is_symlink());
    }
}

/// 255 bytes are what file systems take.
#[test]
fn a_name_of_any_length() {
    let (folder, path) = place(&format!("{}.bpk", "n".repeat(251)));
    for steps in 1..3 {
        let mut optim = trained(adam(), DType::F32, 0..steps, &[]);
        optim.save(&path).unwrap();
        let found = AmpRecord::load(&path).unwrap();
        assert_eq!(found.counters(), Some(optim.scaler().counters()));
    }
    assert_eq!(names(folder.path()).len(), 1);
}

/// What the head alone refuses is not read to its end: no memory would hold this file.
#[test]
fn the_head_comes_first() {
    let (_folder, path) = place("large.bpk");
    let mut newer = contents(&mut adam());
    (newer.scalars).insert("burn_amp.version".to_string(), Scalar::UInt(2));
    let start = Instant::now();
    for (bytes, variant) in [
        (newer.into_bytes().to_vec(), "NewerRecord"),
        (b"NRUB and more".to_vec(), "DamagedRecord"),
    ] {
        fs::write(&path, bytes).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        // Of holes alone.
        file.set_len(90 << 30).unwrap();
        is_error(&adam().load(&path).unwrap_err(), variant, []);
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Four times the parameters take about four times the time.
#[test]
fn masters_load_in_linear_time() {
    // Other work on the machine only adds to a time: the least of some is that of the work itself.
    let seconds = |count: u64| {
        let many = Many::new(count, DType::F16);
        let mut optim = master_adam();
        optim.step(0.1, many.clone(), many.gradients());
        let times = (0..3).map(|_| {
            let record = optim.optimizer().to_record().unwrap();
            let mut loaded = master_adam();
            let start = Instant::now();
            loaded.optimizer_mut().load_record(record).unwrap();
            start.elapsed().as_secs_f64()
        });
        times.fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (seconds(500), seconds(2_000));
    assert!(
        many < 8.0 * few,
        "{many} s for four times the parameters of {few} s"
    );
}

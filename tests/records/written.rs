//! How a file gets to its place: what can be loaded, with the permissions it had.

use std::fs::File;

use crate::support::*;

/// One scalar, many times.
type Many = Vec<Param<Tensor<1>>>;

fn many(count: u64, dtype: DType) -> Many {
    let device = (&Device::flex().autodiff(), dtype);
    let param = |id: u64| {
        let value = Tensor::from_data([0.5], device).require_grad();
        // Ids as Burn makes them: numbers of up to 20 digits.
        Param::initialized(ParamId::from(id.wrapping_mul(0x9e37_79b9_7f4a_7c15)), value)
    };
    (1..=count).map(param).collect()
}

/// A step of its optimizer.
fn step(optim: &mut ScaledOptimizer<impl ModuleOptim>, many: Many, step: usize) -> Many {
    let grads = gradients(&many, step, 0.1, many[0].val().dtype().into());
    optim.step(0.1, many, grads)
}

/// Burn's reader takes 100,000 tensors.
#[test]
#[ignore = "slow"]
fn sweep_more_tensors_than_can_be_loaded_replace_no_file() {
    let (folder, path) = place("window.bpk");
    let mut window = AccumulationConfig::new(9).init().unwrap();
    let mut read = window.clone();
    let accumulate = |window: &mut AccumulationWindow, count| {
        let many = many(count, DType::F32);
        let grads = gradients(&many, 0, 1.0, FloatDType::F32);
        let mut scaler = default_scaler();
        scaler.accumulate(window, grads, &many).unwrap();
    };
    accumulate(&mut window, 100_000);
    window.to_record().save(&path).unwrap();
    accumulate(&mut window, 100_001);
    let error = window.to_record().save(&path).unwrap_err();
    is_error(&error, "RecordIo", ["100001 tensors", "window.bpk"]);
    let error = window.to_record().into_bytes().unwrap_err();
    is_error(&error, "RecordIo", ["100001 tensors"]);
    read.load_record(AmpRecord::load(&path).unwrap()).unwrap();
    assert_eq!(read.gradients(), 100_000);
    assert_eq!(names(folder.path()), ["window.bpk"]);

    // Of an optimizer that has two tensors for each parameter.
    let mut optim = adam();
    step(&mut optim, many(50_001, DType::F32), 0);
    is_error(&optim.into_bytes().unwrap_err(), "RecordIo", []);
}

/// Burn loads all state in one float dtype.
#[test]
fn what_burn_would_round_replaces_no_file() {
    let (_folder, path) = place("optim.bpk");
    let mut optim = adam();
    optim.save(&path).unwrap();
    let good = fs::read(&path).unwrap();
    step(&mut optim, many(2, DType::F64), 0);
    let error = optim.save(&path).unwrap_err();
    is_error(&error, "RecordIo", ["f64", "configure(FloatDType::F64)"]);
    assert_eq!(fs::read(&path).unwrap(), good);
}

/// Where the default device is one of f64, a model in f64 goes on bit for bit.
#[test]
fn f64_resumes_where_it_is_the_default() {
    let folder = tempdir().unwrap();
    let test = concat!(module_path!(), "::trains_in_f64");
    let output = child(test, folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(folder.path().join("done").exists());
}

#[test]
#[ignore = "run by f64_resumes_where_it_is_the_default"]
fn trains_in_f64() {
    let Some(folder) = child_folder() else { return };
    Device::default().configure(FloatDType::F64).unwrap();
    let path = folder.join("optim.bpk");
    let train = |optim: &mut _, many, steps: Range<usize>| {
        steps.fold(many, |many, count| step(optim, many, count))
    };
    let (mut optim, mut resumed) = (adam(), adam());
    let many = train(&mut optim, many(2, DType::F64), 0..3);
    optim.save(&path).unwrap();
    resumed.load(&path).unwrap();
    let again = train(&mut resumed, many.clone(), 3..6);
    let many = train(&mut optim, many, 3..6);
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
    use crate::atomic::save_within;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_private_file_is_never_open_to_others() {
        let (folder, path) = place("optim.bpk");
        momentum().save(&path).unwrap();
        let save_with = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            momentum().save(&path).unwrap();
        };
        for wanted in [0o600, 0o400, 0o640] {
            save_with(wanted);
            assert_eq!(mode(&path), wanted);
            save_within(folder.path(), 8, true);
            let scratch = scratch_files(folder.path());
            assert_eq!(scratch.len(), 1, "{scratch:?}");
            // While it is written its owner can read and write it.
            assert_eq!(mode(&scratch[0]), wanted | 0o600);
            fs::remove_file(&scratch[0]).unwrap();
        }
        // More than the process would give a new file.
        save_with(0o666);
        assert_eq!(mode(&path), 0o666);
    }

    #[test]
    fn a_symbolic_link_is_followed() {
        let folder = tempdir().unwrap();
        let [real, link, further, circle] = ["real", "latest.bpk", "further.bpk", "circle.bpk"]
            .map(|name| folder.path().join(name));
        fs::create_dir(&real).unwrap();
        symlink("real/optim.bpk", &link).unwrap();
        symlink(&link, &further).unwrap();
        symlink("circle.bpk", &circle).unwrap();
        let is_link = |path: &Path| fs::symlink_metadata(path).unwrap().is_symlink();
        let mut optim = adam();
        // The first save makes the file that the link points at.
        for path in [&link, &further, &link.with_extension("")] {
            Small::new(DType::F32).train(&mut optim, 0..1, &[]);
            optim.save(path).unwrap();
            assert!(is_link(&link) && is_link(&further));
            assert_eq!(names(&real), ["optim.bpk"]);
            let found = AmpRecord::load(real.join("optim.bpk")).unwrap();
            assert_eq!(found.counters(), Some(optim.scaler().counters()));
        }
        is_error(&optim.save(&circle).unwrap_err(), "RecordIo", []);
        assert!(is_link(&circle));
    }
}

/// What the head alone refuses is not read to its end: no memory would hold this file.
#[test]
fn the_head_comes_first() {
    let (_folder, path) = place("large.bpk");
    let mut newer = contents(&mut adam());
    (newer.scalars).insert("burn_amp.version".to_string(), Scalar::UInt(2));
    let newer = newer.into_bytes();
    let damaged = &b"NRUB and more"[..];
    for (bytes, variant) in [(&newer[..], "NewerRecord"), (damaged, "DamagedRecord")] {
        fs::write(&path, bytes).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        // Of holes alone.
        file.set_len(90 << 30).unwrap();
        let start = Instant::now();
        is_error(&adam().load(&path).unwrap_err(), variant, []);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// Four times the parameters take about four times the time, and not sixteen.
#[test]
fn masters_load_in_linear_time() {
    let seconds = |count: u64| {
        let mut optim = master_adam();
        step(&mut optim, many(count, DType::F16), 0);
        let record = optim.optimizer().to_record().unwrap();
        let mut loaded = master_adam();
        let start = Instant::now();
        loaded.optimizer_mut().load_record(record).unwrap();
        start.elapsed().as_secs_f64()
    };
    // Other work on the machine can only hide it.
    let is_linear = |_| seconds(2_000) < 8.0 * seconds(500);
    assert!((0..20).any(is_linear));
}

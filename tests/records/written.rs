//! A save is whole or not at all, whatever becomes of it: killed, out of space, or without a place to write. How a file gets to its place: with the
//! permissions it had, and only what can be loaded again.

use std::process::Command;

use crate::support::*;

/// An optimizer of more than 128 KiB after so many steps, the same in every process.
fn large(steps: usize) -> ScaledOptimizer {
    let mut optim = adam();
    (0..steps).fold(many(500, DType::F32), |many, at| step(&mut optim, many, at));
    assert!(optim.into_bytes().unwrap().len() > 128 << 10);
    optim
}

/// Saves `optim.bpk` in a process that may not write so many blocks of 512 bytes, in place of a full disk. The system kills who writes beyond the
/// limit, unless the signal is ignored: then the write fails.
fn save_within(folder: &Path, blocks: usize, is_killed: bool) {
    let test = child(concat!(module_path!(), "::saves_once"), folder);
    let trap = if is_killed { "" } else { "trap '' XFSZ;" };
    let limit = format!("{trap} ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &limit]).arg(test.get_program());
    let variables = test.get_envs();
    let variables = variables.filter_map(|(name, value)| Some((name, value?)));
    shell.args(test.get_args()).envs(variables);
    let output = shell.output().unwrap();
    // One that is killed has no code.
    let code = (!is_killed).then_some(0);
    assert_eq!(output.status.code(), code, "{output:?}");
}

#[test]
#[ignore = "run in a process that may not write large files"]
fn saves_once() {
    let Some(folder) = child_folder() else { return };
    match large(2).save(folder.join("optim.bpk")) {
        Ok(()) => fs::write(folder.join("saved"), "").unwrap(),
        Err(error) => assert_names(&error, &folder.join("optim.bpk")),
    }
}

fn assert_names(error: &AmpError, path: &Path) {
    is_error(error, "RecordIo", [path.to_str().unwrap()]);
}

/// The file of before is whole.
#[cfg(unix)]
#[test]
fn a_full_disk() {
    let (folder, path) = place("optim.bpk");
    let mut saved = large(1);
    saved.save(&path).unwrap();
    for (kill, blocks) in [(false, 1), (false, 64), (true, 1), (true, 64), (true, 100)] {
        save_within(folder.path(), blocks, kill);
        let scratch = scratch_files(folder.path());
        assert!(kill || scratch.is_empty());
        for file in scratch {
            fs::remove_file(file).unwrap();
        }
        assert_eq!(names(folder.path()), ["optim.bpk"]);
        let mut loaded = adam();
        loaded.load(&path).unwrap();
        assert_eq!(contents(&mut loaded), contents(&mut saved));
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let (folder, path) = place("optim.bpk");
    fs::create_dir_all(path.join("inside")).unwrap();
    for path in [&path, &folder.path().join("missing/optim.bpk")] {
        assert_names(&adam().save(path).unwrap_err(), path);
        assert_names(&adam().scaler().to_record().save(path).unwrap_err(), path);
    }
    assert_eq!(names(folder.path()), ["optim.bpk"]);
    assert_eq!(names(&path), ["inside"]);
    // A path that is empty has no name to be shown.
    for result in [adam().save(""), adam().load("")] {
        assert_names(&result.unwrap_err(), Path::new("an empty path"));
    }
}

/// One scalar, many times.
type Many = Vec<Param<Tensor<1>>>;

fn many(count: u64, dtype: DType) -> Many {
    let device = (&flex(), dtype);
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

/// Burn's reader takes 100,000 tensors, of which our index is one.
#[test]
#[ignore = "slow"]
fn sweep_more_tensors_than_can_be_loaded_replace_no_file() {
    let (folder, path) = place("window.bpk");
    let mut window = AccumulationConfig::new(9).init().unwrap();
    let mut read = window.clone();
    let mut accumulate = |count| {
        let many = many(count, DType::F32);
        let grads = gradients(&many, 0, 1.0, FloatDType::F32);
        let mut scaler = default_scaler();
        scaler.accumulate(&mut window, grads, &many).unwrap();
        window.to_record()
    };
    accumulate(99_999).save(&path).unwrap();
    let error = accumulate(100_000).save(&path).unwrap_err();
    is_error(&error, "RecordIo", ["100001 tensors", "window.bpk"]);
    read.load_record(AmpRecord::load(&path).unwrap()).unwrap();
    assert_eq!(read.gradients(), 99_999);
    assert_eq!(names(folder.path()), ["window.bpk"]);

    // An optimizer has two tensors for each parameter, or three, which are all found. No clock judges it: a search through all of them for each would
    // take minutes.
    let (mut optim, mut masters, mut loaded) = (adam(), master_adam(), master_adam());
    step(&mut optim, many(50_001, DType::F32), 0);
    is_error(&optim.into_bytes().unwrap_err(), "RecordIo", []);
    step(&mut masters, many(33_333, DType::F16), 0);
    loaded.from_bytes(masters.into_bytes().unwrap()).unwrap();
    assert_eq!(contents(&mut loaded), contents(&mut masters));
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
    if said_in_child(module_path!(), "f64_resumes_where_it_is_the_default").is_some() {
        return;
    }
    Device::default().configure(FloatDType::F64).unwrap();
    let (mut optim, mut resumed) = (adam(), adam());
    let many = step(&mut optim, many(2, DType::F64), 0);
    resumed.from_bytes(optim.into_bytes().unwrap()).unwrap();
    let again = step(&mut resumed, many.clone(), 1);
    assert_eq!(parameters(&again), parameters(&step(&mut optim, many, 1)));
    assert_eq!(contents(&mut resumed), contents(&mut optim));
    let mut tensors = state(optim.optimizer()).tensors.into_values();
    assert!(tensors.all(|(_, values)| values.0 == DType::F64));
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_private_file_is_never_open_to_others() {
        let (folder, path) = place("optim.bpk");
        momentum().save(&path).unwrap();
        // The last are more than the process would give a new file.
        for wanted in [0o600, 0o400, 0o640, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(wanted)).unwrap();
            momentum().save(&path).unwrap();
            assert_eq!(mode(&path), wanted);
            save_within(folder.path(), 8, true);
            let scratch = scratch_files(folder.path());
            assert_eq!(scratch.len(), 1, "{scratch:?}");
            // While it is written its owner can read and write it.
            assert_eq!(mode(&scratch[0]) & !0o022, (wanted | 0o600) & !0o022);
            fs::remove_file(&scratch[0]).unwrap();
        }
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

/// How many bytes this thread has read from files so far, where the system counts them.
fn bytes_read() -> Option<u64> {
    let io = fs::read_to_string("/proc/thread-self/io").ok()?;
    let count = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    count?.parse().ok()
}

/// What the head alone refuses is not read to its end, which no memory might hold.
#[test]
fn the_head_comes_first() {
    const LENGTH: usize = 4 << 20;
    let Some(_) = bytes_read() else {
        return skipped("nobody counts what is read");
    };
    let (_folder, path) = place("large.bpk");
    let good = contents(&mut adam());
    let mut newer = good.clone();
    (newer.scalars).insert(format!("{SECTION}.version"), Scalar::UInt(2));
    let load = |mut bytes: Vec<u8>| {
        bytes.resize(LENGTH, 0);
        fs::write(&path, bytes).unwrap();
        let before = bytes_read().unwrap();
        (adam().load(&path), bytes_read().unwrap() - before)
    };
    let (loaded, count) = load(good.into_bytes().to_vec());
    assert!(loaded.is_ok() && count >= LENGTH as u64, "{count}");
    for (bytes, variant) in [
        (newer.into_bytes().to_vec(), "NewerRecord"),
        (b"NRUB and more".to_vec(), "DamagedRecord"),
    ] {
        let (refused, count) = load(bytes);
        is_error(&refused.unwrap_err(), variant, []);
        assert!(count < 16384, "{count}");
    }
}

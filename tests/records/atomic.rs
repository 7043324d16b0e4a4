//! A save is whole or not at all: killed, out of space, or without a place to write.

use std::process::Command;

use crate::support::*;

const STATES: usize = 4;

/// Optimizers of about 128 KiB, each different from the others, the same in every process.
fn states() -> Vec<ScaledOptimizer<ModuleOptimizer>> {
    let large = LinearConfig::new(128, 128).init(&Device::flex().autodiff());
    let mut large = fill_with_ids(large, 0, 1.0);
    let mut optim = adam();
    let mut states = Vec::new();
    for step in 0..STATES {
        let grads = gradients(&large, step, 65536.0, FloatDType::F32);
        let grads = scaled_by_hand(optim.scaler(), grads);
        large = optim.step(0.1, large, grads);
        states.push(optim.clone());
    }
    states
}

/// Saves them again and again, in their order.
fn save_for_ever(path: &Path) -> impl Iterator<Item = ()> {
    let mut states = states();
    (0..).map(move |count: usize| states[count % STATES].save(path).unwrap())
}

/// A folder with a file of the first of them, and which of them is in the file.
fn saved() -> (TempDir, impl Fn() -> usize) {
    let (folder, path) = place("optim.bpk");
    let mut states = states();
    states[0].save(&path).unwrap();
    let valid: Vec<Pack> = states.iter_mut().map(contents).collect();
    let which = move || {
        let mut optim = adam();
        optim.load(&path).unwrap();
        let loaded = contents(&mut optim);
        let state = valid.iter().position(|state| *state == loaded);
        state.expect("a file that nobody has saved")
    };
    (folder, which)
}

/// Saves `optim.bpk` in a process that may not write so many blocks of 512 bytes. The system kills who writes beyond the limit, unless
/// the signal is ignored: then the write fails.
pub fn save_within(folder: &Path, blocks: usize, is_killed: bool) {
    let test = child(concat!(module_path!(), "::saves_once"), folder);
    let trap = if is_killed { "" } else { "trap '' XFSZ;" };
    let limit = format!("{trap} ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &limit]);
    shell.arg(test.get_program()).args(test.get_args());
    for (name, value) in test.get_envs() {
        shell.env(name, value.unwrap());
    }
    let output = shell.output().unwrap();
    // One that is killed has no code.
    let code = (!is_killed).then_some(0);
    assert_eq!(output.status.code(), code, "{output:?}");
}

/// A limit on the size of files, in place of a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk() {
    for (kill, blocks) in [(false, 1), (false, 64), (true, 1), (true, 64), (true, 100)] {
        let (folder, which) = saved();
        save_within(folder.path(), blocks, kill);
        assert!(kill || scratch_files(folder.path()).is_empty());
        assert!(!folder.path().join("saved").exists());
        assert_eq!(which(), 0);
    }
}

#[test]
#[ignore = "run in a process that may not write large files"]
fn saves_once() {
    let Some(folder) = child_folder() else { return };
    match states()[1].save(folder.join("optim.bpk")) {
        Ok(()) => fs::write(folder.join("saved"), "").unwrap(),
        Err(error) => assert_names(&error, &folder.join("optim.bpk")),
    }
}

fn assert_names(error: &AmpError, path: &Path) {
    is_error(error, "RecordIo", [path.to_str().unwrap()]);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let (folder, path) = place("optim.bpk");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("inside"), "kept").unwrap();
    for path in [&path, &folder.path().join("missing/optim.bpk")] {
        assert_names(&adam().save(path).unwrap_err(), path);
        assert_names(&adam().scaler().to_record().save(path).unwrap_err(), path);
    }
    assert_eq!(names(folder.path()), ["optim.bpk"]);
    assert_eq!(fs::read_to_string(path.join("inside")).unwrap(), "kept");
    // A path that is empty has no name to be shown.
    for result in [adam().save(""), adam().load("")] {
        assert_names(&result.unwrap_err(), Path::new("an empty path"));
    }
}

/// Beside is where it is written: no reader ever sees a part of it.
#[test]
fn readers_see_whole_files_only() {
    let (folder, which) = saved();
    let path = folder.path().join("optim.bpk");
    let reads = AtomicUsize::new(0);
    let go_on = |(save, ()): &(usize, ())| *save < 60 || reads.load(Ordering::Relaxed) < 5;
    let save = || save_for_ever(&path).enumerate().take_while(go_on).count();
    std::thread::scope(|scope| {
        let saver = scope.spawn(save);
        while !saver.is_finished() {
            which();
            reads.fetch_add(1, Ordering::Relaxed);
        }
    });
}

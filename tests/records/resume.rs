//! A run of 60 steps equals 30 steps, a save, new objects, a load and 30 more: bit for bit.

use std::{fs, path::Path};
use tempfile::tempdir;

use crate::support::*;

/// The length of a run.
const STEPS: usize = 60;

/// Both halves have overflows, steps and a scale that grows.
fn assert_eventful([start, half, end]: &[Snapshot; 3]) {
    for (name, from, to) in [("first", start, half), ("second", half, end)] {
        let skipped = to.counters.skipped() - from.counters.skipped();
        let applied = to.counters.stepped() - from.counters.stepped();
        assert!(skipped >= 2, "{name} half: {skipped} overflows");
        assert!(applied >= 15, "{name} half: {applied} steps");
        // Each skip that the scale is to blame for halves it: where it is higher than that, it grew.
        let blameless = to.counters.bad_losses() - from.counters.bad_losses();
        let lowered = from.scale * 0.5f32.powi((skipped - blameless) as i32);
        assert!(to.scale > lowered, "{name} half: the scale never grew");
        assert_ne!(from.parameters, to.parameters, "{name} half");
    }
}

/// Resumes the run halfway; returns where the straight one ends. The folder has what was saved halfway.
fn resume<O: ModuleOptim>(folder: &Path, build: impl Fn() -> Run<O>) -> Snapshot {
    let start = build().snapshot();
    let [half, end] = resumed(folder, build, STEPS / 2, STEPS);
    let states = [start, half, end];
    assert_eventful(&states);
    let [.., end] = states;
    end
}

fn adam() -> Run<ModuleOptimizer> {
    Run::mixed(AdamConfig::new().init())
}

fn adam_w_masters() -> Run<MasterWeights> {
    Run::half(MasterWeights::new(AdamWConfig::new().build()))
}

fn sgd() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
}

#[test]
fn in_mixed_precision() {
    let folder = tempdir().unwrap();
    resume(folder.path(), || Run::mixed(sgd().init()));
    resume(folder.path(), || Run::mixed(AdamWConfig::new().init()));
}

#[test]
fn with_masters() {
    let folder = tempdir().unwrap();
    resume(folder.path(), || {
        Run::half(MasterWeights::new(AdamConfig::new().build()))
    });
    // The last has no state of its own beside the masters.
    for optim in [sgd(), SgdConfig::new()] {
        resume(folder.path(), || {
            Run::half(MasterWeights::new(optim.build()))
        });
    }
}

/// In the middle of a warm-up, and after what each schedule has learned.
#[test]
fn every_schedule_in_mixed_precision() {
    let folder = tempdir().unwrap();
    for schedule in [
        Schedule::adaptive_interval(),
        Schedule::log_max(),
        Schedule::near_top(),
    ] {
        let build = || Run::scheduled(sgd().init(), schedule);
        resumed(folder.path(), build, STEPS / 2, STEPS);
    }
}

/// The second halves in a process that has never seen the first.
#[test]
fn in_a_new_process() {
    let folder = tempdir().unwrap();
    let [first, second] = ["adam", "masters"].map(|name| folder.path().join(name));
    fs::create_dir_all(first.join("end")).unwrap();
    fs::create_dir_all(second.join("end")).unwrap();
    let adam_end = resume(&first, adam);
    let masters_end = resume(&second, adam_w_masters);
    let mut command = child("resume::second_halves", folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(end(adam(), &first), adam_end);
    assert_eq!(end(adam_w_masters(), &second), masters_end);
}

fn end<O: ModuleOptim>(mut run: Run<O>, folder: &Path) -> Snapshot {
    run.load(&folder.join("end"), STEPS);
    run.snapshot()
}

#[test]
#[ignore = "run by in_a_new_process"]
fn second_halves() {
    let Some(folder) = folder() else { return };
    second_half(adam(), &folder.join("adam"));
    second_half(adam_w_masters(), &folder.join("masters"));
}

fn second_half<O: ModuleOptim>(mut run: Run<O>, folder: &Path) {
    run.load(folder, STEPS / 2);
    run.train_until(STEPS);
    run.save(&folder.join("end"));
}

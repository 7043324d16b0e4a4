//! A run of 60 steps equals 30 steps, a save, new objects, a load and 30 more: bit for bit.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{Snapshot, resumed};
use tempfile::tempdir;

use crate::support::{Run, child, folder};

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

/// Resumes the run halfway; returns the straight one.
fn resume<O: ModuleOptim>(build: impl Fn() -> Run<O>) -> [Snapshot; 3] {
    let folder = tempdir().unwrap();
    let start = build().snapshot();
    let [half, end] = resumed(folder.path(), build, STEPS / 2, STEPS);
    [start, half, end]
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
    assert_eventful(&resume(|| Run::mixed(sgd().init())));
    assert_eventful(&resume(|| Run::mixed(AdamWConfig::new().init())));
}

#[test]
fn with_masters() {
    let adam = || Run::half(MasterWeights::new(AdamConfig::new().build()));
    assert_eventful(&resume(adam));
    // The last has no state of its own beside the masters.
    for optim in [sgd(), SgdConfig::new()] {
        let run = || Run::half(MasterWeights::new(optim.build()));
        assert_eventful(&resume(run));
    }
}

/// In the middle of a warm-up, and after what each schedule has learned.
#[test]
fn every_schedule_in_mixed_precision() {
    for schedule in [
        Schedule::adaptive_interval(),
        Schedule::log_max(),
        Schedule::near_top(),
    ] {
        resume(|| Run::scheduled(sgd().init(), schedule));
    }
}

/// The second half in a process that has never seen the first.
fn resume_in_a_child<O: ModuleOptim>(build: impl Fn() -> Run<O>, test: &str) {
    let halfway = tempdir().unwrap();
    let start = build().snapshot();
    let [half, end] = resumed(halfway.path(), &build, STEPS / 2, STEPS);
    let states = [start, half, end];
    assert_eventful(&states);
    let output = child(test, halfway.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut resumed = build();
    resumed.load(&halfway.path().join("end"), STEPS);
    assert_eq!(resumed.snapshot(), states[2]);
}

/// In the child.
fn second_half<O: ModuleOptim>(mut run: Run<O>) {
    let Some(folder) = folder() else { return };
    run.load(&folder, STEPS / 2);
    run.train_until(STEPS);
    let end = folder.join("end");
    std::fs::create_dir(&end).unwrap();
    run.save(&end);
}

#[test]
fn adam_in_a_new_process() {
    resume_in_a_child(adam, "resume::second_half_of_adam");
}

#[test]
#[ignore = "run by adam_in_a_new_process"]
fn second_half_of_adam() {
    second_half(adam());
}

#[test]
fn masters_in_a_new_process() {
    resume_in_a_child(adam_w_masters, "resume::second_half_of_masters");
}

#[test]
#[ignore = "run by masters_in_a_new_process"]
fn second_half_of_masters() {
    second_half(adam_w_masters());
}

//! A run of 60 steps equals 30 steps, a save, new objects, a load and 30 more: bit for bit.

use burn_amp_tests::prelude::*;
use burn_amp_tests::resumed;
use tempfile::tempdir;

use crate::support::{Run, child, folder};

/// The length of a run.
const STEPS: usize = 60;

/// The straight run, which leaves its halfway state in the folder.
fn straight<O: ModuleOptim>(build: &impl Fn() -> Run<O>, folder: &std::path::Path) -> Run<O> {
    let mut run = build();
    let start = run.snapshot();
    run.train_until(STEPS / 2);
    run.save(folder);
    let half = run.snapshot();
    run.train_until(STEPS);
    let end = run.snapshot();
    for (name, from, to) in [("first", &start, &half), ("second", &half, &end)] {
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
    run
}

fn resume<O: ModuleOptim>(build: impl Fn() -> Run<O>) {
    let folder = tempdir().unwrap();
    let mut straight = straight(&build, folder.path());
    let mut resumed = build();
    resumed.load(folder.path(), STEPS / 2);
    resumed.train_until(STEPS);
    assert_eq!(resumed.snapshot(), straight.snapshot());
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
fn adam_in_mixed_precision() {
    resume(adam);
}

/// In the middle of a warm-up, and after what each schedule has learned.
#[test]
fn every_schedule_in_mixed_precision() {
    for schedule in [
        Schedule::adaptive_interval(),
        Schedule::log_max(),
        Schedule::near_top(),
    ] {
        let build = || Run::scheduled(sgd().init(), schedule);
        let folder = tempdir().unwrap();
        resumed(folder.path(), build, STEPS / 2, STEPS);
    }
}

#[test]
fn sgd_in_mixed_precision() {
    resume(|| Run::mixed(sgd().init()));
}

#[test]
fn adam_w_in_mixed_precision() {
    resume(|| Run::mixed(AdamWConfig::new().init()));
}

#[test]
fn adam_with_masters() {
    resume(|| Run::half(MasterWeights::new(AdamConfig::new().build())));
}

#[test]
fn sgd_with_masters() {
    resume(|| Run::half(MasterWeights::new(sgd().build())));
}

#[test]
fn adam_w_with_masters() {
    resume(adam_w_masters);
}

/// The second half in a process that has never seen the first.
fn resume_in_a_child<O: ModuleOptim>(build: impl Fn() -> Run<O>, test: &str) {
    let halfway = tempdir().unwrap();
    let mut straight = straight(&build, halfway.path());
    let output = child(test, halfway.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut resumed = build();
    resumed.load(&halfway.path().join("end"), STEPS);
    assert_eq!(resumed.snapshot(), straight.snapshot());
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

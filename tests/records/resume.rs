//! A run of 60 steps equals 30 steps, a save, new objects, a load and 30 more: bit for bit.

use crate::support::*;

/// The length of a run.
const STEPS: usize = 60;

/// Resumes the run halfway; returns where the straight one ends. The folder has what was saved halfway.
fn resume<O: ModuleOptim>(folder: &Path, build: impl Fn() -> Run<O>) -> Snapshot {
    let start = build().snapshot();
    let [half, end] = resumed(folder, build, STEPS / 2, STEPS);
    // Both halves have overflows, steps and a scale that grows.
    for (from, to) in [(&start, &half), (&half, &end)] {
        let skipped = to.counters.skipped() - from.counters.skipped();
        let applied = to.counters.stepped() - from.counters.stepped();
        assert!(skipped >= 2 && applied >= 15, "{skipped} of {applied}");
        // Each skip that the scale causes halves it: where it is higher than that, it grew.
        let bad_losses = to.counters.bad_losses() - from.counters.bad_losses();
        let lowered = from.scale * 0.5f32.powi((skipped - bad_losses) as i32);
        assert!(to.scale > lowered, "the scale never grew");
        assert_ne!(from.parameters, to.parameters);
    }
    end
}

fn adam() -> Run<ModuleOptimizer> {
    Run::mixed(AdamConfig::new().init())
}

fn adam_w_masters() -> Run<MasterWeights> {
    Run::half(MasterWeights::new(AdamWConfig::new().build()))
}

/// In the middle of a warm-up, and with what each schedule remembers.
#[test]
fn every_schedule_in_mixed_precision() {
    let folder = tempdir().unwrap();
    let (adaptive, log_max) = (Schedule::adaptive_interval(), Schedule::log_max());
    for schedule in [adaptive, log_max, Schedule::near_top()] {
        let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        let config = at_scale(65536.0).with_growth_interval(5);
        let config = config.with_warmup_steps(40).with_schedule(schedule);
        let schedule = config.schedule().unwrap();
        let build = || Run::at_border(sgd.init(), schedule.clone());
        resumed(folder.path(), build, STEPS / 2, STEPS);
    }
}

/// The second halves in a process that has never seen the first.
#[test]
fn in_a_new_process() {
    let folder = tempdir().unwrap();
    let [first, second] = ["adam", "masters"].map(|name| folder.path().join(name));
    for folder in [&first, &second] {
        fs::create_dir_all(folder.join("end")).unwrap();
    }
    let ends = [resume(&first, adam), resume(&second, adam_w_masters)];
    let test = concat!(module_path!(), "::second_halves");
    let output = child(test, folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!([end(adam(), &first), end(adam_w_masters(), &second)], ends);
}

fn end<O: ModuleOptim>(mut run: Run<O>, folder: &Path) -> Snapshot {
    run.load(&folder.join("end"), STEPS);
    run.snapshot()
}

#[test]
#[ignore = "run by in_a_new_process"]
fn second_halves() {
    let Some(folder) = child_folder() else { return };
    second_half(adam(), &folder.join("adam"));
    second_half(adam_w_masters(), &folder.join("masters"));
}

fn second_half<O: ModuleOptim>(mut run: Run<O>, folder: &Path) {
    run.load(folder, STEPS / 2);
    run.train_until(STEPS);
    run.save(&folder.join("end"));
}

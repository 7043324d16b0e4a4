//! A run that is killed in the middle of an epoch, and resumed by another process.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::support::*;

/// Names the folder of the child's files. None if somebody runs all ignored tests.
const FOLDER: &str = "BURN_AMP_TEST_FOLDER";

/// In the third epoch of four, after three of its six steps, the samples stop coming and the marker is written.
struct Stalling {
    samples: InMemDataset<Sample>,
    monitor: MixedPrecision,
    folder: PathBuf,
}

impl Dataset<Sample> for Stalling {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        if self.monitor.counters().steps() >= 15 {
            // Burn writes checkpoints in a thread of its own.
            while Resume::check(&self.folder, 2).is_err() {
                sleep(Duration::from_millis(5));
            }
            fs::write(marker(&self.folder), "").unwrap();
            sleep(Duration::from_secs(3600));
        }
        self.samples.get(index)
    }

    fn len(&self) -> usize {
        self.samples.len()
    }
}

fn marker(folder: &Path) -> PathBuf {
    folder.join("in the middle of epoch 3")
}

#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn child_trains_until_it_is_killed() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let run = Run::shuffled();
    let amp = run.amp();
    let learner = burns(&amp).unwrap();
    let samples = Stalling {
        samples: InMemDataset::new(run.samples.clone()),
        monitor: amp.clone(),
        folder: folder.clone(),
    };
    let samples = loader(samples, run.shuffle);
    run.training_on(samples, &folder).launch(learner);
    unreachable!("the samples have stalled");
}

#[test]
fn a_run_killed_in_mid_epoch_resumes_as_if_nothing_had_been() {
    let uninterrupted = Run::shuffled().launch();

    let folder = temp_dir();
    let test = "killed::child_trains_until_it_is_killed";
    let mut process = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !marker(folder.path()).exists() {
        assert!(process.try_wait().unwrap().is_none(), "the child has ended");
        assert!(start.elapsed().as_secs() < 120, "the child hangs");
        sleep(Duration::from_millis(10));
    }
    // SIGKILL, as `kill -9`.
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(Resume::check(folder.path(), 3).is_err());

    let run = Run::shuffled().resumed(2);
    let resumed = run.launch_in(&folder, burns);
    assert_same(&uninterrupted, &resumed);
}

//! A run that is killed in the middle of an epoch, and resumed by another process.

use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn_amp::{MixedPrecision, Resume};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    resume::{assert_same, shuffled_run},
    support::{Run, Sample, child, folder, temp_dir},
};

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
                std::thread::sleep(Duration::from_millis(5));
            }
            fs::write(marker(&self.folder), "").unwrap();
            std::thread::sleep(Duration::from_secs(3600));
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
    let Some(folder) = folder() else { return };
    let run = shuffled_run();
    let amp = run.amp();
    let learner = run.learner(&amp);
    let monitor = amp.clone();
    let samples = Stalling {
        samples: InMemDataset::new(run.samples.clone()),
        monitor,
        folder: folder.clone(),
    };
    run.training_on(samples, &folder).launch(learner);
    unreachable!("the samples have stalled");
}

#[test]
fn a_run_killed_in_mid_epoch_resumes_as_if_nothing_had_been() {
    let whole = temp_dir();
    let uninterrupted = shuffled_run().launch(whole.path()).model;

    let folder = temp_dir();
    let mut process = child("killed::child_trains_until_it_is_killed", folder.path())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !marker(folder.path()).exists() {
        assert!(process.try_wait().unwrap().is_none(), "the child has ended");
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "the child hangs"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // SIGKILL, as `kill -9`.
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(Resume::check(folder.path(), 3).is_err());

    let resumed = Run {
        resume: Some(2),
        ..shuffled_run()
    };
    let resumed = resumed.launch(folder.path()).model;
    assert_same((whole.path(), &uninterrupted), (folder.path(), &resumed), 4);
}

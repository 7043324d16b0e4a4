//! A run that is killed in the middle of an epoch, and resumed by another process.

use std::{process::abort, thread::sleep};

use crate::support::*;

/// Written by the child before its end.
const MARKER: &str = "in the middle of epoch 3";

/// In the third epoch of four, after three of its six steps, the process ends, as by `kill -9`: nothing is closed or written any more.
#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn child_trains_until_it_is_killed() {
    let Some(folder) = child_folder() else { return };
    let run = Run::shuffled();
    let amp = run.amp();
    let learner = burns(&amp).unwrap();
    let own = folder.clone();
    let kill = move || {
        if amp.counters().steps() < 15 {
            return Ok(());
        }
        // Burn writes checkpoints in a thread of its own.
        while Resume::check(&own, 2).is_err() {
            sleep(Duration::from_millis(5));
        }
        fs::write(own.join(MARKER), "").unwrap();
        abort();
    };
    let samples = Watched(InMemDataset::new(run.samples.clone()), kill);
    let samples = loader(samples, run.shuffle);
    run.training_on(samples, &folder).launch(learner);
    unreachable!("it goes on after its end");
}

#[test]
fn a_run_killed_in_mid_epoch_resumes_as_if_nothing_had_been() {
    let folder = temp_dir();
    let test = concat!(module_path!(), "::child_trains_until_it_is_killed");
    let output = child(test, folder.path()).output().unwrap();
    assert!(folder.path().join(MARKER).exists(), "{output:?}");
    assert!(!output.status.success(), "{output:?}");
    assert!(Resume::check(folder.path(), 3).is_err());

    let run = Run::shuffled().resumed(2);
    let resumed = run.launch_in(&folder, burns);
    assert_same(&Run::shuffled().launch(), &resumed);
}

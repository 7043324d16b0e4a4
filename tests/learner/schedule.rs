//! A learning rate that waits for steps that are taken.

use crate::support::*;

/// Six batches an epoch, of which these overflow.
fn run(bad: &[usize], epochs: usize) -> Run {
    Run::of(epochs).poisoned(bad.iter().map(|batch| batch * 8))
}

fn launch(run: &Run, folder: &Folder, learner: Made, amp: &MixedPrecision) -> Done {
    let training = run.training(folder.path());
    let training = amp.training(training.metric_train_numeric(LearningRateMetric::new()));
    let done = Done::of(training.launch(learner.unwrap()), amp, folder);
    assert!(done.error.is_none());
    done
}

/// With Burn's Adam.
fn launch_burns(run: &Run, folder: &Folder) -> Done {
    let amp = run.amp();
    let schedule = ScaledLrScheduler::new(lr(), &amp);
    let learner = amp.learner(net(), AdamConfig::new().init(), schedule);
    launch(run, folder, learner, &amp)
}

/// The learning rates of an epoch's items.
fn rates(done: &Done, epoch: usize) -> Vec<f64> {
    let entries = done.metric(epoch, "Learning Rate");
    let items = entries.iter().filter(|line| !line.ends_with("final"));
    done.numbers(epoch, "Learning Rate")[..items.count()].to_vec()
}

/// They are these ones of the plain schedule: where a number comes again, its step was skipped.
fn assert_rates(found: &[f64], expected: &[usize]) {
    let mut lr = lr();
    let plain: Vec<f64> = (0..24).map(|_| lr.step().base()).collect();
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        let expected = plain[*expected];
        // As the metric prints them.
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn it_does_not_advance_on_a_skip() {
    let done = launch_burns(&run(&[2, 5], 2), &temp_dir());
    assert_eq!(done.counters().skipped(), 4);
    assert_rates(&rates(&done, 1), &[0, 1, 2, 2, 3, 4]);
    // The last step of the first epoch was skipped.
    assert_rates(&rates(&done, 2), &[4, 5, 6, 6, 7, 8]);
}

/// Where nobody waits for the device, a step after the one that was skipped. After an epoch, at once: a validation waits.
#[test]
fn it_holds_a_step_later_with_a_fused_optimizer() {
    if Device::default() != Device::flex() {
        return; // when a step is resolved there is up to the device
    }
    let run = run(&[2, 5], 2);
    let amp = run.amp();
    let learner = amp.learner(net(), fused(), ScaledLrScheduler::new(lr(), &amp));
    let done = launch(&run, &temp_dir(), learner, &amp);
    assert_eq!(done.counters().skipped(), 4);
    assert_rates(&rates(&done, 1), &[0, 1, 2, 3, 3, 4]);
    assert_rates(&rates(&done, 2), &[5, 6, 7, 8, 8, 9]);
}

/// After a checkpoint, too, whether the last step before it was skipped or not.
#[test]
fn a_resumed_run_goes_on_with_it() {
    for (bad, last) in [(5, [5, 6, 7, 8, 9, 10]), (4, [5, 6, 7, 8, 9, 9])] {
        let folder = temp_dir();
        launch_burns(&run(&[bad], 1), &folder);
        let done = launch_burns(&run(&[bad], 2).resumed(1), &folder);
        assert_rates(&rates(&done, 2), &last);
    }
}

/// On several devices, of which the workers step in their own time.
#[test]
fn workers_go_together() {
    for optim in WAYS {
        let run = run(&[1, 4], 2).with_workers(optim);
        let done = launch_burns(&run, &temp_dir());
        let mut found = rates(&done, 2);
        found.sort_by(f64::total_cmp);
        assert!(done.counters().skipped() > 0);
        // The lowest is that of the last step, as many as were taken before.
        let taken = done.counters().stepped() as usize;
        assert_rates(&found[..1], &[taken - 1]);
    }
}

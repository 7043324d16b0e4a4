//! A learning rate that waits for steps that are taken.

use crate::support::*;

/// Six batches an epoch, of which these overflow.
fn run(bad: &[usize], epochs: usize) -> Run {
    Run::of(epochs).poisoned(bad.iter().map(|batch| batch * 8))
}

fn launch(run: &Run, folder: &Folder, optim: impl Into<LearnerOptimizer>) -> Done {
    let amp = run.amp();
    let learner = amp.learner(net(), optim, ScaledLrScheduler::new(lr(), &amp));
    let done = run.train_by(folder, &amp, learner, |amp, training| {
        amp.training(training.metric_train_numeric(LearningRateMetric::new()))
    });
    done.finished()
}

fn launch_burns(run: &Run, folder: &Folder) -> Done {
    launch(run, folder, AdamConfig::new().init())
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

/// Where nobody waits for the device, a step after the one that was skipped. After an epoch, at once: a validation waits.
#[test]
fn it_does_not_advance_on_a_skip() {
    let (run, folder) = (run(&[2, 5], 2), temp_dir());
    // The last step of the first epoch was skipped.
    let waited = [[0, 1, 2, 2, 3, 4], [4, 5, 6, 6, 7, 8]];
    let later = [[0, 1, 2, 3, 3, 4], [5, 6, 7, 8, 8, 9]];
    for (done, expected) in [
        (launch_burns(&run, &folder), waited),
        (launch(&run, &temp_dir(), fused_adam()), later),
    ] {
        assert_eq!(done.counters().skipped(), 4);
        for (epoch, expected) in [1, 2].into_iter().zip(expected) {
            assert_rates(&rates(&done, epoch), &expected);
        }
    }
}

/// On several devices, of which the workers step in their own time.
#[test]
fn workers_go_together() {
    for optim in WAYS {
        let run = run(&[1, 4], 2).with_workers(optim);
        for done in [
            launch_burns(&run, &temp_dir()),
            launch(&run, &temp_dir(), fused_adam()),
        ] {
            let mut found = rates(&done, 2);
            found.sort_by(f64::total_cmp);
            assert!(done.counters().skipped() > 0);
            // The lowest is that of the last step, as many as were taken before.
            let taken = done.counters().stepped() as usize;
            assert_rates(&found[..1], &[taken - 1]);
        }
    }
}

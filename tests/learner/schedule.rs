//! A learning rate that waits for steps that are taken.

use crate::support::*;

/// Six batches an epoch, of which these overflow; two epochs, by Burn's optimizer and by a fused one. Where nobody waits for the device, the latter
/// knows later what was skipped.
fn launch(bad: [usize; 2], workers: Option<MultiDeviceOptim>) -> [Done; 2] {
    let run = Run::of(2).with_workers(workers);
    let run = run.poisoned(bad.map(|batch| batch * 8));
    let optims: [LearnerOptimizer; 2] = [burns_adam().into(), fused_adam().into()];
    optims.map(|optim| {
        let amp = run.amp();
        let learner = amp.learner(net(), optim, ScaledLrScheduler::new(lr(), &amp));
        let add = |amp: &MixedPrecision, training: Training| {
            amp.training(training.metric_train_numeric(LearningRateMetric::new()))
        };
        run.train_by(&temp_dir(), &amp, learner, add).finished()
    })
}

/// The learning rates of an epoch's items, as steps of the plain schedule: where a number comes again, its step was skipped.
fn rates(done: &Done, epoch: usize) -> Vec<usize> {
    let mut lr = lr();
    let plain: Vec<f64> = (0..24).map(|_| lr.step().base()).collect();
    // As the metric prints them.
    let step = |rate: &f64| plain.iter().position(|one| (one - rate).abs() < 1e-6);
    let entries = done.metric(epoch, "Learning Rate");
    let items = entries.iter().filter(|line| !line.ends_with("final"));
    let rates = &done.numbers(epoch, "Learning Rate")[..items.count()];
    rates.iter().map(|rate| step(rate).unwrap()).collect()
}

/// Where nobody waits for the device, a step after the one that was skipped. After an epoch, at once: a validation waits.
#[test]
fn it_does_not_advance_on_a_skip() {
    // The last step of the first epoch was skipped.
    let waited = [[0, 1, 2, 2, 3, 4], [4, 5, 6, 6, 7, 8]];
    let later = [[0, 1, 2, 3, 3, 4], [5, 6, 7, 8, 8, 9]];
    for (done, expected) in launch([2, 5], None).iter().zip([waited, later]) {
        assert_eq!(done.counters().skipped(), 4);
        assert_eq!([1, 2].map(|epoch| rates(done, epoch)), expected);
    }
}

/// On several devices, of which the workers step in their own time.
#[test]
fn workers_go_together() {
    for done in WAYS.into_iter().flat_map(|way| launch([1, 4], Some(way))) {
        assert!(done.counters().skipped() > 0);
        // The lowest is that of the last step, as many as were taken before.
        let taken = done.counters().stepped() as usize;
        assert_eq!(rates(&done, 2).into_iter().max(), Some(taken - 1));
    }
}

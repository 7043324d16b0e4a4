//! A learning rate that waits for steps that are taken.

use burn::{
    optim::AdamConfig,
    tensor::Device,
    train::{ExecutionStrategy, Learner, MultiDeviceOptim, metric::LearningRateMetric},
};
use burn_amp::{MixedPrecision, Scaled, ScaledLrScheduler};
use std::path::Path;

use crate::support::{Net, Run, lr, poison, read_metric, temp_dir};

fn learner(amp: &MixedPrecision) -> Learner<Scaled<Net>> {
    let model = Net::new(&Device::default().autodiff());
    let optim = AdamConfig::new().init();
    amp.learner(model, optim, ScaledLrScheduler::new(lr(), amp))
        .unwrap()
}

/// Six batches an epoch, of which these overflow, in two epochs or more.
fn run(bad: &[usize], epochs: usize) -> Run {
    let mut run = Run {
        epochs,
        ..Run::default()
    };
    for batch in bad {
        poison(&mut run.samples, batch * 8);
    }
    run
}

/// The learning rates of an epoch's items.
pub fn rates(folder: &Path, epoch: usize) -> Vec<f64> {
    let lines = read_metric(folder, epoch, "Learning Rate");
    let lines = lines.iter().filter(|line| !line.ends_with("final"));
    lines
        .map(|line| line.split(',').next().unwrap().parse().unwrap())
        .collect()
}

/// The first ones of the plain schedule: where a number comes again, its step was skipped.
pub fn expected(indices: &[usize]) -> Vec<f64> {
    let mut lr = lr();
    let plain: Vec<f64> = (0..24).map(|_| lr.step().base()).collect();
    indices.iter().map(|index| plain[*index]).collect()
}

pub fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        // As the metric prints them.
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn it_does_not_advance_on_a_skip() {
    let folder = temp_dir();
    let run = run(&[2, 5], 2);
    let amp = run.amp();
    let training = run.training(folder.path());
    let training = amp.training(training.metric_train_numeric(LearningRateMetric::new()));
    let result = training.launch(learner(&amp));
    assert_eq!(result.model.scaler().counters().skipped(), 4);
    assert_close(&rates(folder.path(), 1), &expected(&[0, 1, 2, 2, 3, 4]));
    // The last step of the first epoch was skipped.
    assert_close(&rates(folder.path(), 2), &expected(&[4, 5, 6, 6, 7, 8]));
}

/// After a checkpoint, too, whether the last step before it was skipped or not.
#[test]
fn a_resumed_run_goes_on_with_it() {
    for bad in [5, 4] {
        let folder = temp_dir();
        for (epochs, resume) in [(1, None), (2, Some(1))] {
            let run = Run {
                resume,
                ..run(&[bad], epochs)
            };
            let amp = run.amp();
            let training = run.training(folder.path());
            let training = amp.training(training.metric_train_numeric(LearningRateMetric::new()));
            assert!(training.launch(learner(&amp)).error.is_none());
        }
        let last = if bad == 5 {
            [5, 6, 7, 8, 9, 10]
        } else {
            [5, 6, 7, 8, 9, 9]
        };
        assert_close(&rates(folder.path(), 2), &expected(&last));
    }
}

/// On several devices, of which the workers step in their own time.
#[test]
fn workers_go_together() {
    for optim in [
        MultiDeviceOptim::OptimMainDevice,
        MultiDeviceOptim::OptimSharded,
    ] {
        let folder = temp_dir();
        let run = run(&[1, 4], 2);
        let amp = run.amp();
        let devices = vec![Device::flex(), Device::flex()];
        let training = run
            .training(folder.path())
            .with_training_strategy(ExecutionStrategy::multi(devices, optim).into())
            .metric_train_numeric(LearningRateMetric::new());
        let result = amp.training(training).launch(learner(&amp));
        let counters = result.model.scaler().counters();
        let mut found = rates(folder.path(), 2);
        found.sort_by(f64::total_cmp);
        // The lowest is that of the last step, as many as were taken before.
        let last = expected(&[counters.stepped() as usize - 1]);
        assert!(counters.skipped() > 0);
        assert_close(&found[..1], &last);
    }
}

//! A data set with one poisoned batch.

use crate::{fused::LEARNERS, support::*};

fn poisoned(epochs: usize) -> Run {
    let run = Run::of(epochs).with_config(GradScalerConfig::new());
    run.poisoned([2 * 8 + 3])
}

/// The run ends with finite parameters; the skip is counted once, and the scale backed off once.
#[test]
fn a_poisoned_batch_is_skipped_once() {
    let done = poisoned(1).launch();
    assert_eq!(done.steps(), (6, 1));
    assert_eq!(done.model.scaler().loss_scale(), 32768.0);
    assert!(all_finite(&done.model));

    let scales = done.metric(1, "Loss Scale").join(" ");
    assert_eq!(scales, "65536 65536 32768 32768 32768 32768 32768,final");
    let skips = done.metric(1, "Skipped Steps");
    assert_eq!(skips[..6], ["0,1", "0,1", "100,1", "0,1", "0,1", "0,1"]);
    let share = done.last(1, "Skipped Steps");
    assert!((share - 100.0 / 6.0).abs() < 1e-9, "{share}");
    let norms = done.metric(1, "Gradient Norm");
    assert_eq!(norms.len(), 6, "five steps and the epoch: {norms:?}");
}

/// Every step is in the metrics, though its outcome is known a step late: in a pipeline, and where nobody waits for the device.
/// The last ones, too, whose outcomes come after the last item of an epoch.
#[test]
fn metrics_are_of_the_steps_that_are_known() {
    for learner in &LEARNERS[1..] {
        let done = poisoned(2).launch_with(learner);
        assert_eq!(done.counters().skipped(), 2);
        for epoch in [1, 2] {
            let skips = done.metric(epoch, "Skipped Steps");
            let skipped = skips.iter().filter(|line| line.starts_with("100,")).count();
            assert_eq!(skipped, 1, "{skips:?}");
        }
        let scales = done.numbers(1, "Loss Scale");
        assert!(scales.contains(&32768.0), "{scales:?}");
    }
}

/// They belong to the training: in validation they show nothing, and write nothing.
#[test]
fn metrics_are_not_available_in_validation() {
    let amp = MixedPrecision::f16();
    let figures = (amp.loss_scale_metric(), amp.gradient_norm_metric());
    let counts = (amp.skipped_steps_metric(), amp.zero_gradients_metric());
    let add = |_: &_, training: Training| training.metrics(figures).metrics(counts);
    let done = Run::of(1).train_by(&temp_dir(), &amp, burns(&amp), add);
    let done = done.finished();
    let valid = done.folder.path().join("valid/epoch-1");
    for name in METRICS {
        assert_eq!(done.metric(1, name).len(), 7, "{name}");
        let file = format!("{}.log", name.replace(' ', "_"));
        assert!(!valid.join(file).exists(), "{name}");
    }
    assert!(valid.join("Accuracy.log").exists());
}

//! A data set with one poisoned batch.

use crate::support::{Run, all_finite, poison, read_metric, spoil, temp_dir};

/// The run ends with finite parameters; the skip is counted once, and the scale backed off once.
#[test]
fn a_poisoned_batch_is_skipped_once() {
    let folder = temp_dir();
    let mut run = Run {
        epochs: 1,
        config: burn_amp::GradScalerConfig::new(),
        ..Run::default()
    };
    poison(&mut run.samples, 2 * 8 + 3);
    let result = run.launch(folder.path());
    assert!(result.error.is_none());

    let scaler = result.model.scaler();
    assert_eq!(
        (scaler.counters().steps(), scaler.counters().skipped()),
        (6, 1)
    );
    assert_eq!(scaler.loss_scale(), 32768.0);
    assert!(all_finite(&result.model));

    let scales = read_metric(folder.path(), 1, "Loss Scale");
    assert_eq!(
        scales,
        [
            "65536",
            "65536",
            "32768",
            "32768",
            "32768",
            "32768",
            "32768,final"
        ]
    );
    let skips = read_metric(folder.path(), 1, "Skipped Steps");
    assert_eq!(skips[..6], ["0,1", "0,1", "100,1", "0,1", "0,1", "0,1"]);
    let share: f64 = skips[6].trim_end_matches(",final").parse().unwrap();
    assert!((share - 100.0 / 6.0).abs() < 1e-9, "{share}");
    let norms = read_metric(folder.path(), 1, "Gradient Norm");
    assert_eq!(norms.len(), 6, "five steps and the epoch: {norms:?}");
}

/// No loss scale is to blame: the step is skipped, and the scale stays.
#[test]
fn a_loss_that_is_infinite_leaves_the_scale() {
    let folder = temp_dir();
    let mut run = Run {
        epochs: 1,
        config: burn_amp::GradScalerConfig::new(),
        ..Run::default()
    };
    spoil(&mut run.samples, 2 * 8 + 3);
    let model = run.launch(folder.path()).model;
    let counters = model.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (6, 1));
    assert!(all_finite(&model));
    if run.amp().dtype() == burn::tensor::FloatDType::F16 {
        assert_eq!(counters.bad_losses(), 1);
        assert_eq!(model.scaler().loss_scale(), 65536.0);
    }
}

/// They belong to the training: in validation they show nothing, and write nothing.
#[test]
fn metrics_are_not_available_in_validation() {
    let folder = temp_dir();
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let amp = run.amp();
    let monitor = amp.clone();
    let learner = run.learner(&amp);
    let result = run
        .training(folder.path())
        .metrics((
            monitor.loss_scale_metric(),
            monitor.skipped_steps_metric(),
            monitor.gradient_norm_metric(),
            monitor.zero_gradients_metric(),
        ))
        .launch(learner);
    assert!(result.error.is_none());
    for name in [
        "Loss Scale",
        "Skipped Steps",
        "Gradient Norm",
        "Zero Gradients",
    ] {
        assert_eq!(read_metric(folder.path(), 1, name).len(), 7, "{name}");
        let file = format!("valid/epoch-1/{}.log", name.replace(' ', "_"));
        assert!(!folder.path().join(file).exists(), "{name}");
    }
    assert!(folder.path().join("valid/epoch-1/Accuracy.log").exists());
}

//! A data set with one poisoned batch.

use crate::support::{Run, all_finite, poison, read_metric};

/// The run ends with finite parameters; the skip is counted once, and the scale backed off once.
#[test]
fn a_poisoned_batch_is_skipped_once() {
    let folder = tempfile::tempdir().unwrap();
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
    assert!(all_finite(result.model.inner()));

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

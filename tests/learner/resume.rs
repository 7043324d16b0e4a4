//! A run that was stopped and resumed is the one that was not.

use burn_amp::{Scaled, train::check_checkpoint};
use std::path::Path;

use crate::support::{Net, Run, optimizer_pack, pack, parameters, poison, read_metric};

/// Shuffled, with a poisoned sample.
pub fn shuffled_run() -> Run {
    let mut run = Run {
        shuffle: Some(7),
        ..Run::default()
    };
    poison(&mut run.samples, 11);
    run
}

/// Everything that the last checkpoints hold, and the models themselves: bit for bit the same.
pub fn assert_same(left: (&Path, &Scaled<Net>), right: (&Path, &Scaled<Net>), epoch: usize) {
    let file = |folder: &Path, name: &str| folder.join(format!("checkpoint/{name}-{epoch}.bpk"));
    for name in ["model", "scheduler"] {
        let (one, other) = (pack(&file(left.0, name)), pack(&file(right.0, name)));
        assert!(one == other, "{name}");
    }
    let optim = |side: (&Path, &Scaled<Net>)| optimizer_pack(&file(side.0, "optim"), side.1);
    assert!(optim(left) == optim(right), "optim");
    assert_eq!(left.1.scaler().to_record(), right.1.scaler().to_record());
    let values = |model| {
        parameters(model)
            .into_values()
            .map(|(_, v)| v)
            .collect::<Vec<_>>()
    };
    assert!(values(left.1) == values(right.1));
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    for accumulation in [None, Some(4)] {
        let whole = tempfile::tempdir().unwrap();
        let run = Run {
            accumulation,
            ..shuffled_run()
        };
        let uninterrupted = run.launch(whole.path()).model;
        let counters = *uninterrupted.scaler().counters();
        assert!(counters.skipped() >= 4, "{counters:?}");

        let parts = tempfile::tempdir().unwrap();
        let first = Run {
            epochs: 2,
            accumulation,
            ..shuffled_run()
        };
        let half = first.launch(parts.path()).model;
        let stored = check_checkpoint(parts.path(), 2).unwrap().unwrap();
        assert_eq!(stored, half.scaler().to_record());
        drop(half);
        let second = Run {
            resume: Some(2),
            accumulation,
            ..shuffled_run()
        };
        let resumed = second.launch(parts.path()).model;

        assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
        // Loading is not a step: the metrics go on as if they had never stopped. (Inside a window, the scale is read when
        // Burn's thread gets there.)
        for name in [
            "Skipped Steps",
            "Gradient Norm",
            "Zero Gradients",
            "Loss Scale",
        ] {
            for epoch in [3, 4] {
                let [left, right] =
                    [&whole, &parts].map(|folder| read_metric(folder.path(), epoch, name));
                assert!(left.len() >= 2, "{left:?}");
                if accumulation.is_none() || name != "Loss Scale" {
                    assert_eq!(left, right, "{name} in epoch {epoch}");
                }
            }
        }
    }
}

//! `grads_accumulation`: windows of gradients.

use burn::optim::AdamConfig;
use burn_amp::ScaledOptimizer;

use crate::support::{Run, all_finite, poison, scaler_state, temp_dir, values};

/// As a loop by hand that sums gradients, bit for bit; one poisoned micro-batch costs its window, once.
#[test]
fn a_window_is_a_step_and_one_overflow_skips_all_of_it() {
    let folder = temp_dir();
    let mut run = Run {
        accumulation: Some(3),
        epochs: 3,
        ..Run::default()
    };
    // In the second of the two windows of an epoch.
    poison(&mut run.samples, 4 * 8);
    let result = run.launch(folder.path());
    assert!(result.error.is_none());
    let scaler = result.model.scaler();
    assert_eq!(
        (scaler.counters().steps(), scaler.counters().skipped()),
        (6, 3)
    );
    assert_eq!(scaler.loss_scale(), 8192.0);
    assert!(all_finite(&result.model));

    let amp = run.amp();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let net = run.by_hand(&amp, &mut optim);
    assert_eq!(values(&result.model), values(&net));
    assert_eq!(scaler_state(scaler), scaler_state(optim.scaler()));
}

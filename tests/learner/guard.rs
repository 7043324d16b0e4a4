//! A guard that is set on the `ScaledOptimizer`.

use burn::optim::SgdConfig;
use burn_amp::{GradScalerConfig, Guard, MixedPrecision, ScaledOptimizer};

use crate::support::{Run, read_metric, scaler_state, temp_dir, values};

/// Knows what is usual before the first epoch ends.
const GUARD: Guard = Guard::SkipStep {
    rolling_interval_length: 8,
    sigma_factor: 4.0,
    original: false,
};

/// The fifth batch of each epoch has a loss that is 50 times too large.
fn spiked(epochs: usize, resume: Option<usize>) -> Run {
    let mut run = Run {
        epochs,
        resume,
        config: GradScalerConfig::new().with_init_scale(16.0),
        ..Run::default()
    };
    run.samples[4 * 8 + 3].gain = 50.0;
    run
}

fn optim(amp: &MixedPrecision, guard: Option<Guard>) -> ScaledOptimizer {
    let optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
    match guard {
        Some(guard) => optim.with_guard(guard).unwrap(),
        None => optim,
    }
}

/// As a loop by hand, bit for bit, and other than without; metrics and monitor show what was held back.
#[test]
fn a_learner_guards_as_its_optimizer_was_told() {
    let run = spiked(4, None);
    let launch = |guard: Option<Guard>| {
        let folder = temp_dir();
        let amp = run.amp();
        let learner = run.learner_of(&amp, optim(&amp, guard));
        let training = amp.training(run.training(folder.path()));
        let model = training.launch(learner).model;
        let skips: Vec<String> = (1..=run.epochs)
            .flat_map(|epoch| read_metric(folder.path(), epoch, "Skipped Steps"))
            .collect();
        (model, amp, skips)
    };
    let (guarded, amp, skips) = launch(Some(GUARD));
    let counters = guarded.scaler().counters();
    assert_eq!(
        (counters.guarded(), counters.stepped(), counters.skipped()),
        (4, 20, 0)
    );
    assert_eq!(amp.counters(), counters);
    let held = skips.iter().filter(|entry| *entry == "100,1").count();
    assert_eq!(held as u64, counters.guarded());
    assert!(values(&guarded) != values(&launch(None).0));

    let amp = run.amp();
    let mut optim = optim(&amp, Some(GUARD));
    let net = run.by_hand(&amp, &mut optim);
    assert!(values(&guarded) == values(&net));
    assert_eq!(scaler_state(guarded.scaler()), scaler_state(optim.scaler()));
}

/// Its statistics are in the checkpoint.
#[test]
fn a_resumed_run_guards_on() {
    let launch = |run: &Run, folder: &std::path::Path| {
        let amp = run.amp();
        let learner = run.learner_of(&amp, optim(&amp, Some(GUARD)));
        amp.training(run.training(folder)).launch(learner).model
    };
    let (whole, parts) = (temp_dir(), temp_dir());
    let expected = launch(&spiked(4, None), whole.path());
    launch(&spiked(2, None), parts.path());
    let found = launch(&spiked(4, Some(2)), parts.path());
    assert_eq!(expected.scaler().counters().guarded(), 4);
    assert_eq!(found.scaler().counters(), expected.scaler().counters());
    assert!(values(&found) == values(&expected));
}

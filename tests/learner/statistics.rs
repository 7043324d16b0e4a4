//! BatchNorm's running statistics in a run that skips steps.

use crate::support::*;

/// The statistics are those of the features, whatever the weights are.
#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
    net: Net,
}

impl Own for Normed {
    fn output(&self, batch: Batch) -> ClassificationOutput {
        let logits = autocast(batch.features.clone(), |x| {
            let x = in_f32(x.unsqueeze_dim::<3>(2), |x| self.norm.forward(x));
            self.net.forward(x.squeeze_dim::<2>(2))
        });
        self.net.output(logits, batch)
    }
}

/// Mean and variance after an epoch, and how many steps were skipped.
fn train(samples: Vec<Sample>, windows: Option<usize>) -> ([Vec<f32>; 2], u64) {
    let mut run = Run::of(1).with_windows(windows);
    run.samples = samples;
    let done = run.launch_with(|amp| {
        let (norm, net) = (BatchNormConfig::new(8).init(&device()), net());
        let own = Normed { norm, net };
        amp.learner(Model { own }, sgd(amp), ConstantLr::new(0.1))
    });
    let norm = &done.model.own.norm;
    let statistics = [&norm.running_mean, &norm.running_var];
    let statistics = statistics.map(|s| burn_amp_tests::values(s.value_sync()));
    (statistics, done.counters().skipped())
}

/// Statistics of a run in which a batch overflows in the forward pass, in the middle or as the first, are those of a run without these
/// samples; with two micro-batches to a step, those of the step before.
#[test]
fn an_overflow_leaves_no_trace_in_them() {
    for (batch, overflow, without, windows) in [
        (3, overflow(1e6), 24..32, None),
        (0, overflow(1e6), 0..8, None),
        (2, f32::INFINITY, 16..32, Some(2)),
        (3, f32::INFINITY, 16..32, Some(2)),
    ] {
        let mut bad = samples(48);
        bad[batch * 8].features.fill(overflow);
        let mut good = samples(48);
        good.drain(without);
        let (found, skipped) = train(bad, windows);
        assert_eq!(skipped, 1);
        assert!(found.iter().flatten().all(|value| value.is_finite()));
        assert_eq!(found, train(good, windows).0, "batch {batch}");
    }
}

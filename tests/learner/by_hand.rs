//! What is set on the `ScaledOptimizer` goes with it into a Learner, whose run is that of a loop by hand, bit for bit.

use crate::{averages::ema, support::*};

/// A run in a Learner, and the optimizer and the model of the same by hand.
fn both<O: ModuleOptim + TryInto<ModuleOptimizer, Error: Into<AmpError>>>(
    run: &Run,
    optim: impl Fn(&MixedPrecision) -> ScaledOptimizer<O>,
) -> (Done, ScaledOptimizer<O>, Net) {
    let done = run.launch_with(with(&optim));
    let mut optim = optim(&run.amp());
    let net = run.by_hand(&mut optim);
    // Waits for what is known a step late.
    optim.to_record();
    assert!(done.bits() == (values(&net), optim.scaler().bits()));
    (done, optim, net)
}

/// `grads_accumulation`: one poisoned micro-batch, in the second of the two windows of an epoch, costs its window, once.
#[test]
fn a_window_is_a_step_and_one_overflow_skips_all_of_it() {
    let run = Run::of(3).with_windows(3).poisoned([4 * 8]);
    let (done, ..) = both(&run, adam);
    assert_eq!(done.steps(), (6, 3));
    assert_eq!(done.model.scaler().loss_scale(), 8192.0);
    assert!(all_finite(&done.model));
}

/// Other than without, by a fused optimizer too.
#[test]
fn clipping() {
    let run = Run::default().poisoned([20]);
    let clip = GradientClip::GlobalNorm(0.1);
    let (clipped, ..) = both(&run, |amp| sgd(amp).with_clipping(clip));
    assert!(values(&clipped.model) != values(&run.launch_with(with(sgd)).model));
    let optim = |amp: &MixedPrecision| ScaledOptimizer::new(fused(), amp).with_clipping(clip);
    let (clipped, ..) = both(&run, optim);
    assert!(values(&clipped.model) != values(&run.launch().model));
}

/// `overwrite_frequency` and a skipped step included.
#[test]
fn averages() {
    let run = Run::default().poisoned([20]);
    let (done, optim, net) = both(&run, |amp| adam(amp).with_ema(ema()));
    let (learners, by_hand) = (done.model.ema().unwrap(), optim.ema().unwrap());
    assert_eq!((learners.updates(), by_hand.updates()), (20, 20));
    let averages = values(&by_hand.module(&net));
    assert!(averages != values(&net));
    assert!(values(&learners.module(&*done.model)) == averages);
    assert!(values(&done.model.finalize()) == averages);

    let plain = run.launch().model;
    assert!(plain.ema().is_none());
    assert!(values(&plain.clone().finalize()) == values(&plain));
}

/// The fifth batch of each epoch has a loss that is 50 times too large.
pub fn spiked() -> Run {
    let run = Run::default().with_config(at_scale(16.0));
    run.with_gain(50.0, [4 * 8 + 3])
}

pub fn guarded(amp: &MixedPrecision) -> ScaledOptimizer {
    // Knows what is usual before the first epoch ends.
    let guard = Guard::SkipStep {
        rolling_interval_length: 8,
        sigma_factor: 4.0,
        original: false,
    };
    sgd(amp).with_hook(guard)
}

/// Other than without; metrics and monitor show what was rejected.
#[test]
fn a_guard() {
    let (done, ..) = both(&spiked(), guarded);
    let counters = done.counters();
    assert_eq!((counters.guarded(), counters.stepped()), (4, 20));
    assert_eq!((counters.skipped(), done.amp.counters()), (0, counters));
    let skips = (1..=4).flat_map(|epoch| done.metric(epoch, "Skipped Steps"));
    assert_eq!(skips.filter(|entry| entry == "100,1").count(), 4);
    assert!(values(&done.model) != values(&spiked().launch_with(with(sgd)).model));
}

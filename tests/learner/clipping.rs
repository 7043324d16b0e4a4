//! Clipping that is set on the `ScaledOptimizer`.

use burn::optim::SgdConfig;
use burn_amp::{GradientClip, MixedPrecision, ScaledOptimizer};

use crate::support::{Run, poison, scaler_state, temp_dir, values};

/// It goes with the optimizer into the learner: as a loop by hand, bit for bit, and other than without.
#[test]
fn a_learner_clips_as_its_optimizer_was_told() {
    let mut run = Run::default();
    poison(&mut run.samples, 20);
    let optim = |amp: &MixedPrecision, clip: Option<GradientClip>| {
        let optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
        match clip {
            Some(clip) => optim.with_clipping(clip).unwrap(),
            None => optim,
        }
    };
    let launch = |clip: Option<GradientClip>| {
        let folder = temp_dir();
        let amp = run.amp();
        let learner = run.learner_of(&amp, optim(&amp, clip));
        run.training(folder.path()).launch(learner).model
    };
    let clip = || Some(GradientClip::GlobalNorm(0.1));
    let clipped = launch(clip());
    assert!(values(&clipped) != values(&launch(None)));

    let amp = run.amp();
    let mut optim = optim(&amp, clip());
    let net = run.by_hand(&amp, &mut optim);
    assert!(values(&clipped) == values(&net));
    assert_eq!(scaler_state(clipped.scaler()), scaler_state(optim.scaler()));
}

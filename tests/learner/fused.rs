//! A fused optimizer in a `Learner`: the run is that of Burn's optimizer, and each goes on from the other's checkpoints.

use burn::{optim::AdamConfig, tensor::Device};
use burn_amp::{FusedAdam, GradientClip, MixedPrecision, Scaled, ScaledOptimizer};
use std::path::Path;

use crate::{
    resume::{assert_same, shuffled_run},
    support::{Net, Run, lr, temp_dir, values},
};

fn fused() -> FusedAdam {
    FusedAdam::new(AdamConfig::new()).unwrap()
}

/// With the fused optimizer, or with Burn's.
fn launch(run: &Run, folder: &Path, is_fused: bool) -> Scaled<Net> {
    let amp = run.amp();
    let learner = match is_fused {
        true => {
            let net = Net::new(&Device::default().autodiff());
            amp.learner(net, fused(), lr())
        }
        false => run.learner(&amp),
    };
    let result = amp.training(run.training(folder)).launch(learner);
    assert!(result.error.is_none());
    result.model
}

#[test]
fn it_trains_as_burns_and_resumes_from_its_checkpoints() {
    if Device::default() != Device::flex() {
        // Closely as Burn's there, not bit for bit: one run alone.
        let folder = temp_dir();
        let model = launch(&Run::default(), folder.path(), true);
        assert!(model.scaler().counters().stepped() > 0);
        return;
    }
    let whole = temp_dir();
    let expected = launch(&shuffled_run(), whole.path(), false);
    let counters = expected.scaler().counters();
    assert!(counters.skipped() > 0 && counters.stepped() > 0);
    for is_fused in [true, false] {
        let folder = temp_dir();
        let first = Run {
            epochs: 2,
            ..shuffled_run()
        };
        launch(&first, folder.path(), is_fused);
        for goes_on_fused in [true, false] {
            let second = Run {
                resume: Some(2),
                ..shuffled_run()
            };
            let model = launch(&second, folder.path(), goes_on_fused);
            assert_same((whole.path(), &expected), (folder.path(), &model), 4);
        }
    }
}

/// With what a `ScaledOptimizer` adds.
#[test]
fn it_is_clipped_in_a_learner() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let clip = GradientClip::GlobalNorm(0.05);
    let trained = |learner, amp: &MixedPrecision| {
        let folder = temp_dir();
        let training = run.training(folder.path());
        values(&amp.training(training).launch(learner).model)
    };
    let amp = run.amp();
    let optim = ScaledOptimizer::new(fused(), &amp).with_clipping(clip);
    let clipped = trained(run.learner_of(&amp, optim.unwrap()), &amp);
    let amp = run.amp();
    let burns = ScaledOptimizer::new(AdamConfig::new().init(), &amp).with_clipping(clip);
    let expected = trained(run.learner_of(&amp, burns.unwrap()), &amp);
    if Device::default() == Device::flex() {
        assert!(clipped == expected);
    }
    let amp = run.amp();
    assert!(trained(run.learner(&amp), &amp) != clipped);
}

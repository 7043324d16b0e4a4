//! Clipping that is set on the `ScaledOptimizer`.

use burn::{
    lr_scheduler::linear::LinearLrSchedulerConfig,
    optim::{GradientsParams, SgdConfig},
    tensor::Device,
};
use burn_amp::{GradientClip, LossStep, ScaledOptimizer};

use crate::support::{Net, Run, loader, parameters, poison};

/// It goes with the optimizer into the learner: as a loop by hand, bit for bit, and other than without.
#[test]
fn a_learner_clips_as_its_optimizer_was_told() {
    let device = Device::default().autodiff();
    let mut run = Run::default();
    poison(&mut run.samples, 20);
    let optim = |clip: Option<GradientClip>| {
        let optim = ScaledOptimizer::new(SgdConfig::new().init(), run.config.init().unwrap());
        match clip {
            Some(clip) => optim.with_clipping(clip),
            None => optim,
        }
    };
    let lr = || LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
    let launch = |clip: Option<GradientClip>| {
        let folder = tempfile::tempdir().unwrap();
        let learner = optim(clip).into_learner(Net::half_if_possible(&device), lr());
        let result = run.training(folder.path()).launch(learner);
        result.model
    };
    let clip = || Some(GradientClip::by_global_norm(0.1).unwrap());
    let values = |net: &Net| -> Vec<_> { parameters(net).into_values().map(|(_, v)| v).collect() };
    let clipped = launch(clip());
    assert!(values(clipped.inner()) != values(launch(None).inner()));

    let mut net = Net::half_if_possible(&device);
    let (mut optim, mut lr) = (optim(clip()), lr());
    let batches = loader(run.samples.clone(), None).to_device(&device);
    for _ in 0..4 {
        for batch in batches.iter() {
            let (loss, _) = net.loss_step(batch.unwrap());
            let grads = GradientsParams::from_grads(optim.scale(loss).backward(), &net);
            net = optim.step(lr.step(), net, grads);
        }
    }
    assert!(values(clipped.inner()) == values(&net));
    assert_eq!(clipped.scaler().to_record(), optim.scaler().to_record());
}

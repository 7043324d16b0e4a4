//! `grads_accumulation`: windows of scaled gradients.

use burn::{
    lr_scheduler::linear::LinearLrSchedulerConfig,
    optim::{AdamConfig, GradientsAccumulator, GradientsParams},
    tensor::Device,
};
use burn_amp::{LossStep, ScaledOptimizer};

use crate::support::{Net, Run, all_finite, loader, parameters, poison};

/// As a loop by hand that sums scaled gradients, bit for bit; one poisoned micro-batch costs its window, once.
#[test]
fn a_window_is_a_step_and_one_overflow_skips_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
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
    assert!(all_finite(result.model.inner()));

    let device = Device::default().autodiff();
    let mut net = Net::half_if_possible(&device);
    let mut lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), run.config.init().unwrap());
    let batches = loader(run.samples.clone(), None).to_device(&device);
    for _ in 0..3 {
        let mut window = GradientsAccumulator::new();
        for (index, batch) in batches.iter().enumerate() {
            let (loss, _) = net.loss_step(batch.unwrap());
            let grads = GradientsParams::from_grads(optim.scale(loss).backward(), &net);
            window.accumulate(&net, grads);
            if index % 3 == 2 {
                net = optim.step(lr.step(), net, window.grads());
            }
        }
    }
    let values = |net: &Net| -> Vec<_> { parameters(net).into_values().map(|(_, v)| v).collect() };
    assert_eq!(values(result.model.inner()), values(&net));
}

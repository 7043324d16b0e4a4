//! The network with the optimizer on a thread of its own, one update behind the training.

use burn::{
    module::Module,
    optim::{AdamConfig, GradientsParams},
    tensor::Device,
};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer, pipeline::PipelinedOptimizer};
use digits::{data::Digits, model::Network, training::brier_score};
use std::f64::consts::PI;

const STEPS: usize = 300;
/// Steps before the pipeline begins: while the loss falls fast, parameters that are one step old cost more than one step.
const SYNCHRONOUS: usize = 200;

/// The mean loss of the last tenth of a run.
fn final_loss(digits: &Digits, synchronous: usize) -> f32 {
    let device = Device::flex().autodiff();
    device.seed(0);
    let scaler = GradScalerConfig::new().with_growth_interval(12);
    let amp = MixedPrecision::f16().with_scaler(scaler).unwrap();
    let mut model = Network::new(&device).apply_reparameterization(amp.clone());
    let adam = AdamConfig::new().with_epsilon(1e-8).init();
    let optim = ScaledOptimizer::new(adam, &amp);
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let mut last = Vec::new();
    for step in 0..STEPS {
        optim = optim.with_synchronous(step < synchronous);
        let lr = 0.01 * 0.5 * (1.0 + (PI * step as f64 / STEPS as f64).cos());
        let logits = amp.autocast(digits.train.images.clone(), |x| model.forward(x));
        let loss = brier_score(logits, digits.train.labels.clone());
        if step >= STEPS - STEPS / 10 {
            last.push(loss.clone().into_scalar::<f32>());
        }
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(lr, model, grads);
    }
    optim.synchronize(model).unwrap();
    assert!(optim.received_scaler().counters().skipped() > 0);
    last.iter().sum::<f32>() / last.len() as f32
}

#[test]
#[ignore = "minutes in a debug build"]
fn a_pipelined_run_ends_where_a_synchronous_one_does() {
    let digits = Digits::load(&Device::flex().autodiff()).unwrap();
    let expected = final_loss(&digits, STEPS);
    let loss = final_loss(&digits, SYNCHRONOUS);
    println!("synchronous {expected}, pipelined {loss}");
    assert!(expected < 0.02, "nothing was learned: {expected}");
    assert!(
        (loss - expected).abs() < 0.01 * expected,
        "{loss}, {expected}"
    );
}

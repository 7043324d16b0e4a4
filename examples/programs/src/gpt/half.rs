//! The training.

use burn::{
    config::Config,
    grad_clipping::GradientClippingConfig,
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamWConfig, GradientsAccumulator, GradientsParams},
    tensor::Device,
};
use burn_amp::MixedPrecision;
use std::path::Path;

use super::{TrainingConfig, data, model::ModelConfig};
use crate::{Result, mean};

/// Trains, prints the losses of each epoch and what the model makes of some sums, and saves the model.
///
/// # Errors
///
/// If a file cannot be written.
pub fn train(folder: &Path, config: &TrainingConfig, device: &Device) -> Result<()> {
    config.save(folder.join("config.json"))?;
    device.seed(config.seed);
    let device = device.clone().autodiff();

    let amp = MixedPrecision::new(config.precision);
    let (train, valid) = data::loaders(config, &device);
    let steps = config.num_epochs * train.num_items() / config.batch_size / config.accumulation;
    let mut lr = CosineAnnealingLrSchedulerConfig::new(config.learning_rate, steps).init()?;
    let clipping = GradientClippingConfig::Norm(1.0);
    let adam = AdamWConfig::new().with_grad_clipping(Some(clipping));
    let (mut model, mut optim) = amp.prepare(ModelConfig::new().init(&device), adam.init());
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);

    let mut accumulator = GradientsAccumulator::new();
    for epoch in 1..=config.num_epochs {
        let mut train_losses = Vec::new();
        for (index, batch) in train.iter().enumerate() {
            let batch = batch?;
            let logits = amp.autocast(batch.inputs, |x| model.forward(x));
            let loss = cross_entropy.forward(logits, batch.targets.flatten(0, 1));
            train_losses.push(loss.clone().into_scalar::<f32>());
            let loss = loss / config.accumulation as f32;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            accumulator.accumulate(&model, grads);
            if (index + 1) % config.accumulation == 0 {
                model = optim.step(lr.step(), model, accumulator.grads());
            }
        }

        let model = model.valid();
        let mut valid_losses = Vec::new();
        for batch in valid.iter() {
            let batch = batch?;
            let logits = model.forward(batch.inputs);
            let loss = cross_entropy.forward(logits, batch.targets.flatten(0, 1));
            valid_losses.push(loss.into_scalar::<f32>());
        }
        println!(
            "epoch {epoch}: loss {:.6}, validation {:.6}",
            mean(&train_losses),
            mean(&valid_losses)
        );
    }
    let (model, device) = (model.valid(), device.inner());
    for prompt in ["3+4=", "18+9=", "16+16="] {
        println!("{}", model.complete(prompt, &device));
    }
    model.save_file(folder.join("model"))?;
    Ok(())
}

//! The training.

use burn::{
    config::Config,
    module::Module,
    nn::loss::{MseLoss, Reduction},
    optim::{AdamConfig, GradientsParams},
    tensor::Device,
};
use std::path::Path;

use super::{TrainingConfig, data, model::ModelConfig};
use crate::{Result, mean};

/// Trains, prints the losses of each epoch, and saves the model.
///
/// # Errors
///
/// If a file cannot be written.
pub fn train(folder: &Path, config: &TrainingConfig, device: &Device) -> Result<()> {
    config.save(folder.join("config.json"))?;
    device.seed(config.seed);
    let device = device.clone().autodiff();

    let (train, valid) = data::loaders(config, &device);
    let adam = AdamConfig::new();
    let mut model = ModelConfig::new().init(&device);
    let mut optim = adam.init();
    let mse = MseLoss::new();

    for epoch in 1..=config.num_epochs {
        let mut train_losses = Vec::new();
        for batch in train.iter() {
            let batch = batch?;
            let output = model.forward(batch.inputs);
            let loss = mse.forward(output, batch.targets, Reduction::Mean);
            train_losses.push(loss.clone().into_scalar::<f32>());
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(config.learning_rate, model, grads);
        }

        let model = model.valid();
        let mut valid_losses = Vec::new();
        for batch in valid.iter() {
            let batch = batch?;
            let output = model.forward(batch.inputs);
            let loss = mse.forward(output, batch.targets, Reduction::Mean);
            valid_losses.push(loss.into_scalar::<f32>());
        }
        println!(
            "epoch {epoch}: loss {:.6}, validation {:.6}",
            mean(&train_losses),
            mean(&valid_losses)
        );
    }
    model.save_file(folder.join("model"))?;
    Ok(())
}

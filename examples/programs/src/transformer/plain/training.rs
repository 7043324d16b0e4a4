//! The training.

use burn::{
    config::Config,
    lr_scheduler::noam::NoamLrSchedulerConfig,
    module::Module,
    optim::{AdamConfig, decay::WeightDecayConfig},
    tensor::Device,
    train::{
        Learner, SupervisedTraining,
        metric::{AccuracyMetric, LearningRateMetric, LossMetric},
    },
};
use std::path::Path;

use super::model::ModelConfig;
use crate::{
    Result,
    transformer::{TrainingConfig, data},
};

/// Trains, and saves the model.
///
/// # Errors
///
/// If a file cannot be written, or the training fails.
pub fn train(folder: &Path, config: &TrainingConfig, device: &Device) -> Result<()> {
    config.save(folder.join("config.json"))?;
    device.seed(config.seed);
    let (train, valid) = data::loaders(config);

    let training = SupervisedTraining::new(folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .num_epochs(config.num_epochs)
        .summary();

    let model = ModelConfig::new();
    let lr = NoamLrSchedulerConfig::new(0.1)
        .with_warmup_steps(config.warmup_steps)
        .with_model_size(model.d_model)
        .init()?;
    let adam = AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(5e-5)));
    let model = model.init(&device.clone().autodiff());
    let result = training.launch(Learner::new(model, adam.init(), lr));
    if let Some(error) = result.error {
        return Err(error.to_string().into());
    }
    result.model.save_file(folder.join("model"))?;
    Ok(())
}

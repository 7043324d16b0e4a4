//! The training.

use burn::{
    config::Config,
    lr_scheduler::constant::ConstantLr,
    module::Module,
    optim::AdamConfig,
    tensor::Device,
    train::{
        EvaluatorBuilder, Learner, SupervisedTraining,
        metric::{AccuracyMetric, LossMetric},
    },
};
use std::path::Path;

use super::model::ModelConfig;
use crate::{
    Result,
    cnn::{TrainingConfig, data},
};

/// Trains until the validation loss falls no more, saves the model, and tests it.
///
/// # Errors
///
/// If a file cannot be written, the data is damaged, or the training fails.
pub fn train(folder: &Path, config: &TrainingConfig, device: &Device) -> Result<()> {
    config.save(folder.join("config.json"))?;
    device.seed(config.seed);
    let [train, valid, test] = data::loaders(config)?;

    let training = SupervisedTraining::new(folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_default_checkpointers()
        .early_stopping(config.early_stopping())
        .num_epochs(config.num_epochs)
        .summary();

    let model = ModelConfig::new().init(&device.clone().autodiff());
    let optim = AdamConfig::new().init();
    let lr = ConstantLr::new(config.learning_rate);
    let result = training.launch(Learner::new(model, optim, lr));
    if let Some(error) = result.error {
        return Err(error.to_string().into());
    }
    result.model.clone().save_file(folder.join("model"))?;

    let evaluator = EvaluatorBuilder::new(folder)
        .renderer(result.renderer)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .summary();
    evaluator.build(result.model).eval("digits", test);
    Ok(())
}

//! A Wasserstein GAN (Arjovsky, Chintala and Bottou, 2017) that draws digits: two models and two optimizers in a hand-written
//! loop, and a critic whose weights are clipped.

pub mod data;
pub mod half;
pub mod model;
pub mod plain;

use burn::{config::Config, tensor::FloatDType};

use crate::Options;

/// The settings of a run.
#[derive(Config, Debug)]
pub struct TrainingConfig {
    /// Passes over the training data.
    #[config(default = 60)]
    pub num_epochs: usize,
    /// Images of a step.
    #[config(default = 64)]
    pub batch_size: usize,
    /// Of both optimizers.
    #[config(default = 1e-3)]
    pub learning_rate: f64,
    /// Steps of the critic for one of the generator.
    #[config(default = 5)]
    pub critic_steps: usize,
    /// No weight of the critic is larger.
    #[config(default = 0.05)]
    pub clip: f64,
    /// Where the run begins.
    #[config(default = 0)]
    pub seed: u64,
    /// What the half-precision program computes in.
    #[config(default = "FloatDType::F16")]
    pub precision: FloatDType,
}

/// Runs the plain program, or that in half precision.
///
/// # Errors
///
/// If a file cannot be written, or the data is damaged.
pub fn run(options: &Options) -> crate::Result<()> {
    let config = TrainingConfig::new().with_seed(options.seed);
    let epochs = options.epochs.unwrap_or(config.num_epochs);
    let config = config.with_num_epochs(epochs);
    match options.precision {
        None => plain::train(&options.folder, &config, &options.device),
        Some(precision) => {
            let config = config.with_precision(precision);
            half::train(&options.folder, &config, &options.device)
        }
    }
}

//! A character GPT that learns to add: gradients of several small batches are accumulated for each step of a hand-written loop.

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
    #[config(default = 30)]
    pub num_epochs: usize,
    /// Texts of a forward pass.
    #[config(default = 8)]
    pub batch_size: usize,
    /// Batches of a step.
    #[config(default = 4)]
    pub accumulation: usize,
    /// The largest, at the beginning.
    #[config(default = 3e-3)]
    pub learning_rate: f64,
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
/// If a file cannot be written.
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

//! A Transformer that tells praise from blame in a sentence: Burn's `Learner`, with a learning rate that is warmed up.

pub mod data;

/// In f32.
pub mod plain {
    pub mod model;
    pub mod training;
}

/// In half precision.
pub mod half {
    pub mod model;
    pub mod training;
}

use burn::{config::Config, tensor::FloatDType};

use crate::Options;

/// The settings of a run.
#[derive(Config, Debug)]
pub struct TrainingConfig {
    /// Passes over the training data.
    #[config(default = 8)]
    pub num_epochs: usize,
    /// Sentences of a step.
    #[config(default = 16)]
    pub batch_size: usize,
    /// Steps until the learning rate is largest.
    #[config(default = 30)]
    pub warmup_steps: usize,
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
/// If a file cannot be written, or the training fails.
pub fn run(options: &Options) -> crate::Result<()> {
    let config = TrainingConfig::new().with_seed(options.seed);
    let epochs = options.epochs.unwrap_or(config.num_epochs);
    let config = config.with_num_epochs(epochs);
    match options.precision {
        None => plain::training::train(&options.folder, &config, &options.device),
        Some(precision) => {
            let config = config.with_precision(precision);
            half::training::train(&options.folder, &config, &options.device)
        }
    }
}

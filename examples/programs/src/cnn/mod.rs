//! A convolutional network with BatchNorm that reads digits: Burn's `Learner` with early stopping, then its evaluator.

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

use burn::{
    config::Config,
    tensor::FloatDType,
    train::{
        MetricEarlyStoppingStrategy, StoppingCondition,
        metric::{
            LossMetric,
            store::{Aggregate, Direction, Split},
        },
    },
};

use crate::Options;

/// The settings of a run.
#[derive(Config, Debug)]
pub struct TrainingConfig {
    /// Passes over the training data, at most.
    #[config(default = 20)]
    pub num_epochs: usize,
    /// Images of a step.
    #[config(default = 64)]
    pub batch_size: usize,
    /// Of Adam.
    #[config(default = 1e-3)]
    pub learning_rate: f64,
    /// Epochs without a better validation loss after which the run ends.
    #[config(default = 3)]
    pub patience: usize,
    /// Where the run begins.
    #[config(default = 0)]
    pub seed: u64,
    /// What the half-precision program computes in.
    #[config(default = "FloatDType::F16")]
    pub precision: FloatDType,
}

impl TrainingConfig {
    /// Ends a run when the validation loss falls no more.
    pub fn early_stopping(&self) -> MetricEarlyStoppingStrategy {
        let condition = StoppingCondition::NoImprovementSince {
            n_epochs: self.patience,
        };
        MetricEarlyStoppingStrategy::new(
            &LossMetric::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            condition,
        )
    }
}

/// Runs the plain program, or that in half precision.
///
/// # Errors
///
/// If a file cannot be written, the data is damaged, or the training fails.
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

//! What the tests share: a small classifier, its data, runs of the real `SupervisedTraining`, and the names of Burn's training.

mod bits;
mod data;
mod model;
mod run;

// Of this crate's names with the same ones of the others.
pub use bits::{pack, values};
pub use burn::{
    data::{
        dataloader::DataLoader,
        dataset::{Dataset, DatasetError, InMemDataset},
    },
    lr_scheduler::constant::ConstantLr,
    train::{
        ClassificationOutput, ExecutionStrategy, InferenceStep, Interrupter, Interruption, Learner,
        LearnerModel, LearningResult, MultiDeviceOptim, SupervisedTraining, TrainOutput, TrainStep,
        metric::{AccuracyMetric, LearningRateMetric, LossMetric, Metric, MetricMetadata, Numeric},
        renderer::CliMetricsRenderer,
    },
};
pub use burn_amp::train::*;
pub use burn_amp_tests::prelude::*;
pub use burn_amp_tests::run::{adam, sgd};
pub use run::{Run, resumed};
pub use {bits::*, data::*, model::*, run::*};

//! What the tests share: a small classifier, its data, runs of the real `SupervisedTraining`, and the names of Burn's training.

mod data;
mod model;
mod run;

// Of this crate's names with the same ones of the others.
pub use burn::{
    data::{
        dataloader::DataLoader,
        dataset::{Dataset, DatasetError, InMemDataset},
    },
    lr_scheduler::constant::ConstantLr,
    train::{
        ClassificationOutput, ExecutionStrategy, InferenceStep, Interrupter, Interruption, Learner,
        LearnerModel, LearningResult,
        MultiDeviceOptim::{self, OptimMainDevice, OptimSharded},
        SupervisedTraining, TrainOutput, TrainStep,
        checkpoint::KeepLastNCheckpoints,
        metric::{AccuracyMetric, LearningRateMetric, LossMetric, Metric, MetricMetadata, Numeric},
        renderer::CliMetricsRenderer,
    },
};
pub use burn_amp::train::*;
pub use burn_amp_tests::prelude::*;
pub use burn_amp_tests::run::{adam, sgd};
pub use run::{Run, pack, values};
pub use {data::*, model::*, run::*};

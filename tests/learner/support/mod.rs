//! What the tests share: a small classifier, its data, runs of the real `SupervisedTraining`, and the names of Burn's training.

mod bits;
mod data;
mod model;
mod run;

pub use bits::{STATE_ID, all_finite, assert_same, numbers, pack, stored_state, values};
pub use burn::{
    data::{
        dataloader::{DataLoader, Progress},
        dataset::{Dataset, DatasetError, InMemDataset},
    },
    lr_scheduler::{LrSchedulerConfig, constant::ConstantLr},
    train::{
        ClassificationOutput, ExecutionStrategy, InferenceStep, Interrupter, Interruption, Learner,
        LearnerModel, LearningResult, MultiDeviceOptim, SupervisedTraining, TrainOutput, TrainStep,
        metric::{AccuracyMetric, LearningRateMetric, LossMetric, Metric, MetricMetadata, Numeric},
        renderer::CliMetricsRenderer,
    },
};
pub use burn_amp_tests::{Files, Values, is_error, panic_message, parameters, prelude::*, says};
pub use data::{Batch, Sample, batches, loader, overflow, samples};
pub use model::{Model, Net, Own};
pub use run::{
    Done, Folder, METRICS, Made, Run, WAYS, adam, burns, copy, device, failed, fused, lr, net,
    pipelined, resumed, resumed_with, sgd, step, temp_dir, with,
};

//! Runs of the real `SupervisedTraining`, and what they leave.

use burn::{
    data::dataset::{Dataset, InMemDataset},
    lr_scheduler::linear::LinearLrSchedulerConfig,
    module::Module,
    optim::AdamConfig,
    tensor::Device,
    train::{
        Learner, LearnerModel, LearningResult, SupervisedTraining,
        metric::{AccuracyMetric, LossMetric},
        renderer::CliMetricsRenderer,
    },
};
use burn_amp::{
    GradScalerConfig, GradientNormMetric, LossScaleMetric, Scaled, ScaledOptimizer, ScalerMonitor,
    SkippedStepsMetric, ZeroGradientsMetric, train::resumed_loader,
};
use std::{fs, path::Path};

use super::{Net, Sample, bits::parameters, data::loader_of, loader, samples};

/// Six batches of 8 an epoch, Adam, a falling learning rate, a scale that grows every fourth step.
pub struct Run {
    pub samples: Vec<Sample>,
    pub shuffle: Option<u64>,
    pub config: GradScalerConfig,
    pub epochs: usize,
    pub resume: Option<usize>,
    pub accumulation: Option<usize>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            samples: samples(48),
            shuffle: None,
            config: GradScalerConfig::new().with_growth_interval(4),
            epochs: 4,
            resume: None,
            accumulation: None,
        }
    }
}

impl Run {
    /// The learner and the monitor of its scaler.
    pub fn learner(&self) -> (Learner<Scaled<Net>>, ScalerMonitor) {
        self.learner_of(Net::half_if_possible(&Device::default().autodiff()))
    }

    pub fn learner_of(&self, model: Net) -> (Learner<Scaled<Net>>, ScalerMonitor) {
        let scaler = self.config.init().unwrap();
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler);
        let lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
        let monitor = optim.monitor();
        (optim.into_learner(model, lr), monitor)
    }

    /// A training with checkpoints of all epochs and Burn's metrics.
    pub fn training(&self, folder: &Path) -> SupervisedTraining<Scaled<Net>> {
        self.training_on(InMemDataset::new(self.samples.clone()), folder)
    }

    /// The same, on other samples.
    pub fn training_on<D: Dataset<Sample> + 'static>(
        &self,
        samples_to_train: D,
        folder: &Path,
    ) -> SupervisedTraining<Scaled<Net>> {
        let train = loader_of(samples_to_train, self.shuffle);
        let train = resumed_loader(train, self.resume.unwrap_or(0));
        let training = quiet(SupervisedTraining::new(
            folder,
            train,
            loader(samples(16), None),
        ))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .num_epochs(self.epochs);
        let training = match self.resume {
            Some(epoch) => training.checkpoint(epoch),
            None => training,
        };
        match self.accumulation {
            Some(count) => training.grads_accumulation(count),
            None => training,
        }
    }

    /// All of it, with the metrics of this crate.
    pub fn launch(&self, folder: &Path) -> LearningResult<Scaled<Net>> {
        let (learner, monitor) = self.learner();
        self.training(folder)
            .metric_train_numeric(LossScaleMetric::new(&monitor))
            .metric_train_numeric(SkippedStepsMetric::new(&monitor))
            .metric_train_numeric(GradientNormMetric::new(&monitor))
            .metric_train_numeric(ZeroGradientsMetric::new(&monitor))
            .launch(learner)
    }
}

/// Checkpoints of all epochs; no dashboard, whatever the features and the terminal; no log of its own, which can be installed
/// only once in a process.
pub fn quiet<M: LearnerModel>(training: SupervisedTraining<M>) -> SupervisedTraining<M> {
    training
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_application_logger(None)
        .with_default_checkpointers()
        .with_checkpointing_strategy(burn::train::checkpoint::KeepLastNCheckpoints::new(100))
}

/// The entries of a metric's file.
pub fn read_metric(folder: &Path, epoch: usize, name: &str) -> Vec<String> {
    let name = name.replace(' ', "_");
    let path = folder.join(format!("train/epoch-{epoch}/{name}.log"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(str::to_string).collect()
}

pub fn all_finite<M: Module>(model: &M) -> bool {
    let parameters = parameters(model);
    assert!(!parameters.is_empty());
    parameters.values().all(|(_, (_, _, bytes))| {
        let mut values = bytes.chunks_exact(4);
        values.all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite())
    })
}

//! The training itself.

use burn::{
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    optim::AdamConfig,
    tensor::{Device, FloatDType},
    train::{
        Interruption, LearningResult, SupervisedTraining,
        checkpoint::KeepLastNCheckpoints,
        metric::{AccuracyMetric, LearningRateMetric, LossMetric},
        renderer::CliMetricsRenderer,
    },
};
use burn_amp::{
    GradScalerConfig, GradientNormMetric, LossScaleMetric, MixedPrecision, Scaled, ScaledOptimizer,
    SkippedStepsMetric, ZeroGradientsMetric,
    train::{check_checkpoint, resumed_loader},
};
use std::path::PathBuf;

use crate::{
    Result,
    data::{loaders, steps},
    model::Classifier,
};

const LEARNING_RATE: f64 = 0.01;
/// Clean steps before the scale grows. Short, since a run has a few hundred steps.
const GROWTH_INTERVAL: u32 = 20;
/// Checkpoints that are kept, the last ones.
const CHECKPOINTS: usize = 10;

/// What to train, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Metric files, log and checkpoints go here.
    pub folder: PathBuf,
    /// Where the run begins: the same seed gives the same run, on Flex bit for bit.
    pub seed: u64,
    /// Epochs in all, those before a resume included.
    pub epochs: usize,
    /// The epoch whose checkpoint to go on from.
    pub resume: Option<usize>,
    /// The dtype in which the network computes. Losses are scaled in f16 only.
    pub precision: FloatDType,
    /// Whether to show Burn's dashboard, if the program runs in a terminal.
    pub dashboard: bool,
}

/// Trains, or goes on training: the model, and the stop if the user asked for one.
///
/// # Errors
///
/// A damaged or missing checkpoint, and whatever has ended the run early: a loss scale that is exhausted, a file that
/// cannot be written.
pub fn train(
    settings: &Settings,
    device: &Device,
) -> Result<(Scaled<Classifier>, Option<Interruption>)> {
    let resumed = settings.resume.unwrap_or(0);
    if resumed > 0 {
        // Burn panics on a checkpoint that it cannot read.
        check_checkpoint(&settings.folder, resumed)?;
    }
    MixedPrecision::new(settings.precision).check_device(device)?;
    device.seed(settings.seed);
    let (train, valid) = loaders(settings.seed)?;
    let lr = CosineAnnealingLrSchedulerConfig::new(LEARNING_RATE, settings.epochs * steps(&train));
    // The order of the samples goes on, too.
    let train = resumed_loader(train, resumed);

    let scaler = GradScalerConfig::new()
        .with_growth_interval(GROWTH_INTERVAL)
        .with_enabled(settings.precision == FloatDType::F16)
        .init()?;
    let model = Classifier::new(settings.precision, &device.clone().autodiff());
    let optim = ScaledOptimizer::new(AdamConfig::new().with_epsilon(1e-8).init(), scaler);
    let monitor = optim.monitor();
    let learner = optim.into_learner(model, lr.init()?);

    let mut training = SupervisedTraining::new(&settings.folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LossScaleMetric::new(&monitor))
        .metric_train_numeric(SkippedStepsMetric::new(&monitor))
        .metric_train_numeric(GradientNormMetric::new(&monitor))
        .metric_train_numeric(ZeroGradientsMetric::new(&monitor))
        .metric_train_numeric(LearningRateMetric::new())
        .with_interrupter(monitor.interrupter())
        .with_default_checkpointers()
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(CHECKPOINTS))
        .num_epochs(settings.epochs)
        .summary();
    if resumed > 0 {
        training = training.checkpoint(resumed);
    }
    if !settings.dashboard {
        training = training.renderer(Box::new(CliMetricsRenderer::new()));
    }
    let LearningResult {
        model,
        renderer,
        interrupted,
        error,
    } = training.launch(learner);
    // Gives the terminal back, so that what is printed next can be read.
    drop(renderer);
    monitor.check()?;
    match error {
        Some(error) => Err(error.to_string().into()),
        None => Ok((model, interrupted)),
    }
}

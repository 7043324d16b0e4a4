//! The training itself.

use burn::{
    lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig,
    optim::AdamConfig,
    tensor::{Device, FloatDType},
    train::{
        Interruption, SupervisedTraining,
        checkpoint::KeepLastNCheckpoints,
        metric::{AccuracyMetric, LearningRateMetric, LossMetric},
        renderer::CliMetricsRenderer,
    },
};
use burn_amp::{GradScalerConfig, MixedPrecision, train::LearnerExt, train::Resume, train::Scaled};
use burn_amp_report::FlightRecorder;
use std::path::PathBuf;

use crate::{
    Result,
    data::{loaders, steps},
    model::Classifier,
};

const LEARNING_RATE: f64 = 0.01;
/// Finite steps before the scale grows. Short, since a run has a few hundred steps.
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
    /// The dtype in which the network computes. There is a loss scale in f16 only.
    pub precision: FloatDType,
    /// Whether to show Burn's dashboard, if the program runs in a terminal.
    pub dashboard: bool,
}

/// The scale grows sooner than by default: a run is short.
fn precision(dtype: FloatDType) -> Result<MixedPrecision> {
    let amp = MixedPrecision::new(dtype);
    Ok(match dtype {
        FloatDType::F16 => {
            amp.with_scaler(GradScalerConfig::new().with_growth_interval(GROWTH_INTERVAL))?
        }
        _ => amp,
    })
}

/// Trains, or goes on training: the model, and the stop if the user asked for one.
///
/// # Errors
///
/// A damaged or missing checkpoint, a device without the precision, and whatever has ended the run early: a loss scale that is exhausted, a file that
/// cannot be written.
pub fn train(
    settings: &Settings,
    device: &Device,
) -> Result<(Scaled<Classifier>, Option<Interruption>)> {
    let resume = match settings.resume {
        Some(epoch) => Some(Resume::check(&settings.folder, epoch)?),
        None => None,
    };
    let amp = precision(settings.precision)?;
    device.seed(settings.seed);
    let (train, valid) = loaders(settings.seed)?;
    let lr = CosineAnnealingLrSchedulerConfig::new(LEARNING_RATE, settings.epochs * steps(&train));
    // The order of the samples goes on, too.
    let train = match &resume {
        Some(resume) => resume.loader(train),
        None => train,
    };

    // What happened, should it fail; and step times for the report of the run.
    FlightRecorder::new(&settings.folder, &amp)?;
    let model = Classifier::new(&device.clone().autodiff());
    let optim = AdamConfig::new().with_epsilon(1e-8).init();

    let mut training = SupervisedTraining::new(&settings.folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(CHECKPOINTS))
        .num_epochs(settings.epochs)
        .summary();
    if let Some(resume) = &resume {
        training = training.checkpoint(resume.epoch());
    }
    if !settings.dashboard {
        training = training.renderer(Box::new(CliMetricsRenderer::new()));
    }
    let result = amp.launch(training, model, optim, lr.init()?)?;
    // Gives the terminal back, so that what is printed next can be read.
    drop(result.renderer);
    Ok((result.model, result.interrupted))
}

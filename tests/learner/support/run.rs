//! Runs of the real `SupervisedTraining`, and what they leave.

use burn::{
    data::dataset::{Dataset, InMemDataset},
    lr_scheduler::{linear::LinearLrSchedulerConfig, module_lr_scheduler::ModuleLrScheduler},
    module::Module,
    optim::{AdamConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer},
    tensor::{Device, FloatDType},
    train::{
        ClassificationOutput, InferenceStep, Learner, LearnerModel, LearningResult,
        SupervisedTraining, TrainStep,
        metric::{AccuracyMetric, LossMetric},
        renderer::CliMetricsRenderer,
    },
};
use burn_amp::{GradScalerConfig, MixedPrecision, ModuleOptim, Resume, Scaled, ScaledOptimizer};
use std::{fs, path::Path};
use tempfile::TempDir;

use super::{Batch, Net, Sample, data::loader_of, loader, parameters, samples};

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
    /// A handle of its own for each run; where the device has no f16, it tests gradients all the same.
    pub fn amp(&self) -> MixedPrecision {
        let half = MixedPrecision::f16().check_device(&Device::default());
        let dtype = half.map_or(FloatDType::F32, |()| FloatDType::F16);
        let amp = MixedPrecision::new(dtype);
        amp.with_scaler(self.config).unwrap()
    }

    pub fn learner(&self, amp: &MixedPrecision) -> Learner<Scaled<Net>> {
        let net = Net::new(&Device::default().autodiff());
        amp.learner(net, AdamConfig::new().init(), lr()).unwrap()
    }

    pub fn learner_of(
        &self,
        amp: &MixedPrecision,
        optim: ScaledOptimizer<impl ModuleOptim + Into<ModuleOptimizer>>,
    ) -> Learner<Scaled<Net>> {
        amp.learner(Net::new(&Device::default().autodiff()), optim, lr())
            .unwrap()
    }

    /// The same run without a Learner.
    pub fn by_hand<O: ModuleOptim>(
        &self,
        amp: &MixedPrecision,
        optim: &mut ScaledOptimizer<O>,
    ) -> Net {
        let device = Device::default().autodiff();
        let mut net = Net::new(&device).apply_reparameterization(amp.clone());
        let mut lr = lr();
        let batches = loader(self.samples.clone(), None).to_device(&device);
        for _ in 0..self.epochs {
            let mut window = GradientsAccumulator::new();
            for (index, batch) in batches.iter().enumerate() {
                let batch = batch.unwrap();
                let logits = amp.autocast(batch.features.clone(), |x| net.forward(x));
                let loss = net.output(logits, batch).loss;
                let grads = GradientsParams::from_grads(loss.backward(), &net);
                window.accumulate(&net, grads);
                if (index + 1).is_multiple_of(self.accumulation.unwrap_or(1)) {
                    net = optim.step(lr.step(), net, window.grads());
                }
            }
        }
        net
    }

    /// Of Burn alone, in f32.
    pub fn plain(&self, optim: ModuleOptimizer) -> Learner<Net> {
        Learner::new(Net::new(&Device::default().autodiff()), optim, lr())
    }

    /// A training with checkpoints of all epochs and Burn's metrics.
    pub fn training<M: Trained>(&self, folder: &Path) -> SupervisedTraining<M> {
        self.training_on(InMemDataset::new(self.samples.clone()), folder)
    }

    /// The same, on other samples.
    pub fn training_on<M: Trained, D: Dataset<Sample> + 'static>(
        &self,
        samples_to_train: D,
        folder: &Path,
    ) -> SupervisedTraining<M> {
        let train = loader_of(samples_to_train, self.shuffle);
        let resume = self
            .resume
            .map(|epoch| Resume::check(folder, epoch).unwrap());
        let train = match &resume {
            Some(resume) => resume.loader(train),
            None => train,
        };
        let valid = loader(samples(16), None);
        let training = quiet(SupervisedTraining::new(folder, train, valid))
            .metrics((AccuracyMetric::new(), LossMetric::new()))
            .num_epochs(self.epochs);
        let training = match &resume {
            Some(resume) => training.checkpoint(resume.epoch()),
            None => training,
        };
        match self.accumulation {
            Some(count) => training.grads_accumulation(count),
            None => training,
        }
    }

    /// All of it, with the metrics of this crate.
    pub fn launch(&self, folder: &Path) -> LearningResult<Scaled<Net>> {
        let amp = self.amp();
        let learner = self.learner(&amp);
        amp.training(self.training(folder)).launch(learner)
    }
}

/// A new folder. Its files outlive a test on a GPU, which reads them when it needs them: for a later test, maybe.
pub fn temp_dir() -> TempDir {
    let keep = !format!("{:?}", Device::default()).contains("Flex");
    let mut builder = tempfile::Builder::new();
    builder.disable_cleanup(keep);
    builder.tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Falls from 0.05 to 0.01 in 24 steps.
pub fn lr() -> ModuleLrScheduler {
    LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap()
}

/// What these runs train: a `Net`, scaled or not.
pub trait Trained:
    LearnerModel
    + TrainStep<Input = Batch, Output = ClassificationOutput>
    + InferenceStep<Input = Batch, Output = ClassificationOutput>
{
}

impl<M> Trained for M where
    M: LearnerModel
        + TrainStep<Input = Batch, Output = ClassificationOutput>
        + InferenceStep<Input = Batch, Output = ClassificationOutput>
{
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

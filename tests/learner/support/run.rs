//! Runs of the real `SupervisedTraining`, and what they leave.

use std::rc::Rc;
use tempfile::TempDir;

use super::*;

/// Six batches of 8 an epoch, Adam, a falling learning rate, a scale that grows every fourth step.
#[derive(Clone)]
pub struct Run {
    pub samples: Vec<Sample>,
    pub shuffle: Option<u64>,
    pub config: GradScalerConfig,
    pub epochs: usize,
    pub resume: Option<usize>,
    pub accumulation: Option<usize>,
    pub workers: Option<MultiDeviceOptim>,
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
            workers: None,
        }
    }
}

/// What is set.
impl Run {
    pub fn of(epochs: usize) -> Self {
        Self::default().until(epochs)
    }

    /// Shuffled, with a poisoned sample.
    pub fn shuffled() -> Self {
        let mut run = Self::default().poisoned([11]);
        run.shuffle = Some(7);
        run
    }

    pub fn until(self, epochs: usize) -> Self {
        Self { epochs, ..self }
    }

    /// From the checkpoint of this epoch on.
    pub fn resumed(mut self, epoch: usize) -> Self {
        self.resume = Some(epoch);
        self
    }

    pub fn with_config(self, config: GradScalerConfig) -> Self {
        Self { config, ..self }
    }

    /// So many skipped steps in a row are allowed.
    pub fn with_skips(self, skips: u32) -> Self {
        self.with_config(GradScalerConfig::new().with_max_consecutive_skips(Some(skips)))
    }

    /// Windows of so many micro-batches.
    pub fn with_windows(mut self, count: impl Into<Option<usize>>) -> Self {
        self.accumulation = count.into();
        self
    }

    /// Two workers on one device, which are two threads with a fork of the model each.
    pub fn with_workers(mut self, optim: impl Into<Option<MultiDeviceOptim>>) -> Self {
        self.workers = optim.into();
        self
    }

    /// The gradients of every batch that holds one of these samples overflow once they are multiplied by the loss scale. Where
    /// the device has no f16, they overflow by themselves.
    pub fn poisoned(self, indices: impl IntoIterator<Item = usize>) -> Self {
        self.with_gain(overflow(1e30), indices)
    }

    /// The loss of every batch that holds one of these samples is multiplied.
    pub fn with_gain(mut self, gain: f32, indices: impl IntoIterator<Item = usize>) -> Self {
        for index in indices {
            self.samples[index].gain = gain;
        }
        self
    }
}

/// What is done.
impl Run {
    /// A handle of its own for each run.
    pub fn amp(&self) -> MixedPrecision {
        narrowest().with_scaler(self.config).unwrap()
    }

    /// The same run without a Learner, from this model on, and what it does with gradients.
    pub fn by_hand(
        &self,
        mut net: Net,
        mut lr: ModuleLrScheduler,
        amp: &MixedPrecision,
        mut step: impl FnMut(ModuleLearningRate, Net, GradientsParams) -> Net,
    ) -> Net {
        for _ in 0..self.epochs {
            let mut window = GradientsAccumulator::new();
            for (index, batch) in batches(&self.samples).into_iter().enumerate() {
                window.accumulate(&net, net.grads(amp, batch));
                if (index + 1).is_multiple_of(self.accumulation.unwrap_or(1)) {
                    net = step(lr.step(), net, window.grads());
                }
            }
        }
        net
    }

    /// A training with checkpoints of all epochs and Burn's metrics.
    pub fn training<M: Trained>(&self, folder: &Path) -> SupervisedTraining<M> {
        let samples = InMemDataset::new(self.samples.clone());
        self.training_on(loader(samples, self.shuffle), folder)
    }

    /// The same, on other samples. No dashboard, whatever the features and the terminal; no log of its own, which can be
    /// installed only once in a process.
    pub fn training_on<M: Trained>(
        &self,
        mut train: Arc<dyn DataLoader<Batch>>,
        folder: &Path,
    ) -> SupervisedTraining<M> {
        let resume = (self.resume).map(|epoch| Resume::check(folder, epoch).unwrap());
        if let Some(resume) = &resume {
            train = resume.loader(train);
        }
        let valid = loader(InMemDataset::new(samples(16)), None);
        let mut training = SupervisedTraining::new(folder, train, valid)
            .renderer(Box::new(CliMetricsRenderer::new()))
            .with_application_logger(None)
            .with_default_checkpointers()
            .with_checkpointing_strategy(KeepLastNCheckpoints::new(100))
            .metrics((AccuracyMetric::new(), LossMetric::new()))
            .num_epochs(self.epochs);
        if let Some(resume) = &resume {
            training = training.checkpoint(resume.epoch());
        }
        if let Some(count) = self.accumulation {
            training = training.grads_accumulation(count);
        }
        if let Some(optim) = self.workers {
            let devices = vec![Device::default(), Device::default()];
            let strategy = ExecutionStrategy::multi(devices, optim);
            training = training.with_training_strategy(strategy.into());
        }
        training
    }

    /// All of it, with any learner, in a new folder.
    pub fn launch<M: Trained>(&self, learner: impl Fn(&MixedPrecision) -> Made<M>) -> Done<M> {
        self.launch_in(&temp_dir(), learner)
    }

    /// And in this one.
    pub fn launch_in<M: Trained>(
        &self,
        folder: &Folder,
        learner: impl Fn(&MixedPrecision) -> Made<M>,
    ) -> Done<M> {
        let amp = self.amp();
        self.train(folder, &amp, learner(&amp)).finished()
    }

    /// With the metrics of this crate. It may fail.
    pub fn train<M: Trained>(
        &self,
        folder: &Folder,
        amp: &MixedPrecision,
        made: Made<M>,
    ) -> Done<M> {
        self.train_by(folder, amp, made, |amp, training| amp.training(training))
    }

    /// With what is added to the training.
    pub fn train_by<M: Trained>(
        &self,
        folder: &Folder,
        amp: &MixedPrecision,
        made: Made<M>,
        add: impl FnOnce(&MixedPrecision, Training<M>) -> Training<M>,
    ) -> Done<M> {
        let training = add(amp, self.training(folder.path()));
        Done::of(training.launch(made.unwrap()), amp, folder)
    }
}

/// A run of four epochs, the first half of the same, and what goes on from its checkpoint: the uninterrupted one, bit for bit.
pub fn resumed(run: &Run, launch: impl Fn(&Run, &Folder) -> Done) -> [Done; 3] {
    let whole = launch(run, &temp_dir());
    let half = launch(&run.clone().until(2), &temp_dir());
    let resumed = launch(&run.clone().resumed(2), &half.folder);
    assert_eq!(half.stored_state(2), half.model.scaler().bits());
    assert_same(&whole, &resumed);
    [whole, half, resumed]
}

/// Everything that the checkpoints of the fourth epoch hold, and the models themselves: bit for bit the same.
pub fn assert_same(left: &Done, right: &Done) {
    for name in ["model", "optim", "scheduler"] {
        let file = format!("checkpoint/{name}-4.bpk");
        let [one, other] = [left, right].map(|done| pack(&done.folder.path().join(&file)));
        assert!(one == other, "{name}");
    }
    for done in [left, right] {
        assert_eq!(done.stored_state(4), done.model.scaler().bits());
    }
    assert!(left.bits() == right.bits());
}

/// All that the file of a model, an optimizer or a scheduler holds.
pub fn pack(path: &Path) -> Pack {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    burn_amp_tests::pack(Bytes::from_bytes_vec(bytes))
}

/// The values alone, in the order of their paths.
pub fn values<M: Module>(module: &M) -> Vec<Values> {
    parameters(module).into_values().map(|(_, v)| v).collect()
}

pub fn all_finite<M: Module>(model: &M) -> bool {
    numbers(model).into_iter().all(f32::is_finite)
}

/// What a run leaves.
pub struct Done<M = Net> {
    pub model: Scaled<M>,
    pub amp: MixedPrecision,
    pub folder: Folder,
    pub error: Option<String>,
    pub interrupted: Option<Interruption>,
}

impl<M> Done<M> {
    pub fn of(result: LearningResult<Scaled<M>>, amp: &MixedPrecision, folder: &Folder) -> Self {
        Self {
            model: result.model,
            amp: amp.clone(),
            folder: folder.clone(),
            error: result.error.map(|error| error.to_string()),
            interrupted: result.interrupted,
        }
    }

    /// It must not have failed.
    pub fn finished(self) -> Self {
        assert_eq!(self.error, None);
        self
    }

    /// The record of scaler and averages in the checkpoint of an epoch.
    pub fn stored(&self, epoch: usize) -> AmpRecord {
        let resume = Resume::check(self.folder.path(), epoch).unwrap();
        resume.record().unwrap().clone()
    }

    /// The scaler's state in it, without those of hooks.
    pub fn stored_state(&self, epoch: usize) -> Bytes {
        let record = self.stored(epoch);
        let hooks: Vec<String> = record.hooks().map(str::to_string).collect();
        let without = |record: AmpRecord, hook: &String| record.without_hook(hook);
        hooks.iter().fold(record, without).bits()
    }

    pub fn counters(&self) -> StepCounters {
        self.model.scaler().counters()
    }

    /// How many steps there were, and how many of them were skipped.
    pub fn steps(&self) -> (u64, u64) {
        (self.counters().steps(), self.counters().skipped())
    }

    /// The file of a metric, or of a part of its name.
    pub fn log(&self, split: &str, epoch: usize, name: &str) -> PathBuf {
        let file = format!("{split}/epoch-{epoch}/{}.log", name.replace(' ', "_"));
        self.folder.path().join(file)
    }

    /// The entries of a metric's file.
    pub fn metric(&self, epoch: usize, name: &str) -> Vec<String> {
        let path = self.log("train", epoch, name);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        text.lines().map(str::to_string).collect()
    }

    /// Their numbers, the last of which is the epoch's.
    pub fn numbers(&self, epoch: usize, name: &str) -> Vec<f64> {
        let entries = self.metric(epoch, name);
        let number = |entry: &String| entry.split(',').next().unwrap().parse().unwrap();
        entries.iter().map(number).collect()
    }
}

impl<M: Module + 'static> Done<M> {
    /// The parameters, and the state of the scaler.
    pub fn bits(&self) -> (Vec<Values>, Bytes) {
        (values(&self.model), self.model.scaler().bits())
    }
}

pub fn net() -> Net {
    Net::new(&device())
}

/// What a run is launched by.
pub type Training<M = Net> = SupervisedTraining<Scaled<M>>;

/// What `MixedPrecision::learner` makes.
pub type Made<M = Net> = Result<Learner<Scaled<M>>, AmpError>;

/// Of the optimizer that this makes.
pub fn with<O: Into<LearnerOptimizer>>(
    optim: impl Fn(&MixedPrecision) -> O,
) -> impl Fn(&MixedPrecision) -> Made {
    move |amp| amp.learner(net(), optim(amp), lr())
}

/// Of Burn's own Adam.
pub fn burns(amp: &MixedPrecision) -> Made {
    with(|_| AdamConfig::new().init())(amp)
}

/// Of the fused one, whose steps nobody waits for.
pub fn fused(amp: &MixedPrecision) -> Made {
    with(|_| fused_adam())(amp)
}

/// One update behind between two validations.
pub fn behind(amp: &MixedPrecision) -> Made {
    with(|amp| pipelined(adam(amp)))(amp)
}

/// What a pipeline is leaves nothing of itself in a checkpoint.
pub const LEARNERS: [fn(&MixedPrecision) -> Made; 3] = [burns, fused, behind];

pub fn fused_adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new())
}

/// On a thread of its own.
pub fn pipelined<O>(optim: ScaledOptimizer<O>) -> PipelinedOptimizer<O>
where
    O: ModuleOptim + Send + 'static,
{
    PipelinedOptimizer::new(optim, Device::flex()).unwrap()
}

pub fn ema() -> EmaConfig {
    let ema = EmaConfig::new().with_momentum(0.9);
    ema.with_overwrite_frequency(Some(7))
}

pub fn averaging(amp: &MixedPrecision) -> Made {
    with(|amp| adam(amp).with_ema(ema()))(amp)
}

/// Parameters and averages of a model.
pub fn averaged(model: &Scaled<Net>) -> (Vec<Values>, Vec<Values>, u64) {
    let ema = model.ema().unwrap();
    let averages = ema.module(&**model);
    (values(model), values(&averages), ema.updates())
}

/// Falls from 0.05 to 0.01 in 24 steps.
pub fn lr() -> ModuleLrScheduler {
    LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap()
}

/// Where the optimizer of several workers runs.
pub const WAYS: [MultiDeviceOptim; 2] = [
    MultiDeviceOptim::OptimMainDevice,
    MultiDeviceOptim::OptimSharded,
];

/// The metrics of this crate.
pub const METRICS: [&str; 4] = [
    "Skipped Steps",
    "Gradient Norm",
    "Zero Gradients",
    "Loss Scale",
];

/// A step as the Learner makes it.
pub fn step<M: Trained>(learner: &mut Learner<M>, batch: Batch) {
    let grads = learner.train_step(batch).grads;
    learner.lr_step();
    learner.optimizer_step(grads);
}

/// A new folder. Its files outlive a test on a GPU, which reads them when it needs them: for a later test, maybe.
pub fn temp_dir() -> Folder {
    let mut builder = tempfile::Builder::new();
    builder.disable_cleanup(Device::default() != Device::flex());
    Rc::new(builder.tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
}

/// Copies the checkpoint of the first epoch.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("checkpoint")).unwrap();
    for file in ["model", "optim", "scheduler"] {
        let file = format!("checkpoint/{file}-1.bpk");
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

/// A folder that goes with the last one who names it.
pub type Folder = Rc<TempDir>;

/// What these runs train: a `Net`, scaled or not.
pub trait Trained:
    LearnerModel
    + TrainStep<Input = Batch, Output = ClassificationOutput>
    + InferenceStep<Input = Batch, Output = ClassificationOutput>
{
}

impl Trained for Net {}
impl Trained for Model {}
impl<M: Trained + 'static> Trained for Scaled<M> {}

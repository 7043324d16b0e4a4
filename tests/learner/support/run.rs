//! Runs of the real `SupervisedTraining`, and what they leave.

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
    pub watch: Watch,
}

/// What is set.
impl Run {
    pub fn of(epochs: usize) -> Self {
        Self {
            samples: samples(48),
            shuffle: None,
            config: GradScalerConfig::new().with_growth_interval(4),
            epochs,
            resume: None,
            accumulation: None,
            workers: None,
            watch: Arc::new(|| Ok(())),
        }
    }

    /// Shuffled, with a poisoned sample.
    pub fn shuffled() -> Self {
        let mut run = Self::of(4).poisoned([11]);
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
            self.samples[index].1 = gain;
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

    pub fn loader(&self) -> Loader {
        let samples = InMemDataset::new(self.samples.clone());
        loader(Watched(samples, self.watch.clone()), self.shuffle)
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
            for window in batches(&self.samples).chunks(self.accumulation.unwrap_or(1)) {
                let mut sum = GradientsAccumulator::new();
                for batch in window {
                    sum.accumulate(&net, net.grads(amp, batch.clone()));
                }
                net = step(lr.step(), net, sum.grads());
            }
        }
        net
    }

    /// A training with checkpoints of all epochs and Burn's metrics. No dashboard, whatever the features and the terminal; no log of its own, which
    /// can be installed only once in a process.
    pub fn training<M>(&self, folder: &Path) -> SupervisedTraining<M>
    where
        M: LearnerModel
            + TrainStep<Input = Batch, Output = ClassificationOutput>
            + InferenceStep<Input = Batch, Output = ClassificationOutput>,
    {
        let resume = (self.resume).map(|epoch| Resume::check(folder, epoch).unwrap());
        let own = self.loader();
        let train = (resume.as_ref()).map_or(own.clone(), |resume| resume.loader(own));
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
    pub fn launch(&self, learner: impl Fn(&MixedPrecision) -> Made) -> Done {
        self.launch_in(&temp_dir(), learner)
    }

    /// And in this one.
    pub fn launch_in(&self, folder: &Folder, learner: impl Fn(&MixedPrecision) -> Made) -> Done {
        let amp = self.amp();
        self.train(folder, &amp, learner(&amp)).finished()
    }

    /// With the metrics of this crate. It may fail.
    pub fn train(&self, folder: &Folder, amp: &MixedPrecision, made: Made) -> Done {
        self.train_by(folder, amp, made, |amp, training| amp.training(training))
    }

    /// With what is added to the training.
    pub fn train_by(
        &self,
        folder: &Folder,
        amp: &MixedPrecision,
        made: Made,
        add: impl FnOnce(&MixedPrecision, Training) -> Training,
    ) -> Done {
        let training = add(amp, self.training(folder.path()));
        Done::of(training.launch(made.unwrap()), amp, folder)
    }
}

/// Everything that the checkpoints of the fourth epoch hold, and the models themselves: bit for bit the same.
pub fn assert_same(left: &Done, right: &Done) {
    for name in ["model", "optim", "scheduler"] {
        let [one, other] = [left, right].map(|done| pack(&file(&done.folder, name, 4)));
        assert!(one == other, "{name}");
    }
    for done in [left, right] {
        assert_eq!(done.stored_state(4), done.model.scaler().bits());
    }
    assert!(left.bits() == right.bits());
}

/// That of a model, an optimizer or a scheduler in the checkpoint of an epoch.
pub fn file(folder: &Folder, name: &str, epoch: usize) -> PathBuf {
    let file = format!("checkpoint/{name}-{epoch}.bpk");
    folder.path().join(file)
}

/// All that it holds.
pub fn pack(file: &Path) -> Pack {
    let bytes = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
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
pub struct Done {
    pub model: Scaled<Net>,
    pub amp: MixedPrecision,
    pub folder: Folder,
    pub error: Option<String>,
    pub interrupted: Option<Interruption>,
}

impl Done {
    pub fn of(result: LearningResult<Scaled<Net>>, amp: &MixedPrecision, folder: &Folder) -> Self {
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

    /// The parameters, and the state of the scaler.
    pub fn bits(&self) -> (Vec<Values>, Bytes) {
        (values(&self.model), self.model.scaler().bits())
    }

    /// The file of a metric.
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

pub fn net() -> Net {
    Net::new(&device())
}

/// What a run is launched by.
pub type Training = SupervisedTraining<Scaled<Net>>;

/// What `MixedPrecision::learner` makes.
pub type Made = Result<Learner<Scaled<Net>>, AmpError>;

/// Of the optimizer that this makes.
pub fn with<O: Into<LearnerOptimizer>>(
    optim: impl Fn(&MixedPrecision) -> O,
) -> impl Fn(&MixedPrecision) -> Made {
    move |amp| amp.learner(net(), optim(amp), lr())
}

/// Of Burn's own Adam.
pub fn burns(amp: &MixedPrecision) -> Made {
    with(|_| burns_adam())(amp)
}

/// Of the fused one, whose steps nobody waits for.
pub fn fused(amp: &MixedPrecision) -> Made {
    with(|_| fused_adam())(amp)
}

/// One update behind between two validations.
pub fn behind(amp: &MixedPrecision) -> Made {
    with(|amp| pipelined(adam(amp)))(amp)
}

/// On the same thread, which is waited for.
pub fn synchronous(amp: &MixedPrecision) -> Made {
    with(|amp| pipelined(adam(amp)).with_synchronous(true))(amp)
}

/// A fused optimizer on a thread of its own.
pub fn fused_behind(amp: &MixedPrecision) -> Made {
    with(|amp| pipelined(ScaledOptimizer::new(fused_adam(), amp)))(amp)
}

/// What a pipeline is leaves nothing of itself in a checkpoint.
pub const LEARNERS: [fn(&MixedPrecision) -> Made; 4] = [burns, fused, behind, fused_behind];

pub fn burns_adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

pub fn fused_adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new())
}

/// On a thread of its own.
pub fn pipelined<O: ModuleOptim + Send + 'static>(
    optim: ScaledOptimizer<O>,
) -> PipelinedOptimizer<O> {
    PipelinedOptimizer::new(optim, Device::flex()).unwrap()
}

pub fn ema() -> EmaConfig {
    let ema = EmaConfig::new().with_momentum(0.9);
    ema.with_overwrite_frequency(Some(7))
}

/// Adam with what may stand around its step.
pub fn around(amp: &MixedPrecision) -> ScaledOptimizer {
    let clip = GradientClip::GlobalNorm(0.1);
    adam(amp).with_clipping(clip).with_ema(ema())
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
pub const WAYS: [MultiDeviceOptim; 2] = [OptimMainDevice, OptimSharded];

/// The metrics of this crate.
pub const METRICS: [&str; 4] = [
    "Skipped Steps",
    "Gradient Norm",
    "Zero Gradients",
    "Loss Scale",
];

/// A step as the Learner makes it.
pub fn step(learner: &mut Learner<Scaled<Net>>, batch: Batch) {
    let grads = learner.train_step(batch).grads;
    learner.lr_step();
    learner.optimizer_step(grads);
}

/// A folder that goes with the last one who names it.
pub type Folder = Arc<TempDir>;

/// A new one. Its files outlive a test on a GPU, which reads them when it needs them: for a later test, maybe.
pub fn temp_dir() -> Folder {
    let mut builder = tempfile::Builder::new();
    builder.disable_cleanup(Device::default() != Device::flex());
    Arc::new(builder.tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
}

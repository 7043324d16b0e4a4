//! Burn's `Learner` on one remote device, and on those of two servers.

use crate::*;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::{Dataset, DatasetError};
use burn::lr_scheduler::constant::ConstantLr;
use burn::nn::loss::{MseLoss, Reduction};
use burn::train::{
    ExecutionStrategy, InferenceStep, MultiDeviceOptim, RegressionOutput, SupervisedTraining,
    TrainOutput, TrainStep, metric::LossMetric, renderer::CliMetricsRenderer,
};
use burn_amp::train::{LearnerExt, Resume, Scaled};
use tempfile::TempDir;

/// Items of a batch, and batches of an epoch.
const BATCH: usize = 4;
const BATCHES: usize = 6;
/// The item whose batch has a loss that overflows backwards.
const POISONED: usize = 17;

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let (hidden, head) = (linear(6, 16), linear(16, 2));
        fill_with_ids(Self { hidden, head }, 0, 0.5)
    }
}

/// Inputs, targets, and what the loss is multiplied by.
type Batch = (Tensor<2>, Tensor<2>, Tensor<1>);

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, (input, target, gain): Batch) -> RegressionOutput {
        let output = autocast(input, |x| self.head.forward(tanh(self.hidden.forward(x))));
        let loss = MseLoss::new().forward(output.clone(), target.clone(), Reduction::Mean);
        RegressionOutput::new(loss * gain, output, target)
    }
}

/// Items, by their numbers. What is done before the item of a number, counted over all epochs, is done there.
struct Items {
    read: AtomicUsize,
    before: Option<(usize, Box<dyn Fn() + Send + Sync>)>,
}

impl Dataset<usize> for Items {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        let count = self.read.fetch_add(1, Ordering::Relaxed);
        match &self.before {
            Some((number, act)) if *number == count => act(),
            _ => {}
        }
        Ok(index)
    }

    fn len(&self) -> usize {
        BATCH * BATCHES
    }
}

struct Batches;

impl Batcher<usize, Batch> for Batches {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch {
        let (first, count) = (items[0], items.len());
        let gain = if items.contains(&POISONED) { 1e30 } else { 1.0 };
        (
            random(100 * first, [count, 6], device),
            random(100 * first + 50, [count, 2], device),
            Tensor::from_data([gain as f32], device),
        )
    }
}

fn loader(before: Option<(usize, Box<dyn Fn() + Send + Sync>)>) -> Arc<dyn DataLoader<Batch>> {
    let read = AtomicUsize::new(0);
    let builder = DataLoaderBuilder::new(Batches).batch_size(BATCH);
    builder.build(Items { read, before })
}

/// A training in a folder, from the checkpoint after `epoch` on if there is one.
fn training(
    folder: &Path,
    train: Arc<dyn DataLoader<Batch>>,
    epoch: Option<usize>,
) -> SupervisedTraining<Scaled<Net>> {
    let training = SupervisedTraining::new(folder, train, loader(None))
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_application_logger(None)
        .with_default_checkpointers()
        .metrics((LossMetric::new(),))
        .num_epochs(4);
    match epoch {
        Some(epoch) => {
            let resume = Resume::check(folder, epoch).unwrap();
            training.checkpoint(resume.epoch())
        }
        None => training,
    }
}

fn amp() -> MixedPrecision {
    f16_under(at_scale(1024.0).with_growth_interval(4))
}

/// All that a run has left: parameters, counters, the loss scale, and the losses of each epoch as they were logged, where workers come in any order.
#[derive(Debug, PartialEq)]
struct Left {
    parameters: BTreeMap<String, (u64, Values)>,
    counters: StepCounters,
    scale: f32,
    losses: Vec<Vec<String>>,
}

/// Trains on these devices; with the optimizer there, if they are several.
fn run(
    devices: &[Device],
    optim: MultiDeviceOptim,
    folder: &TempDir,
    train: Arc<dyn DataLoader<Batch>>,
    epoch: Option<usize>,
) -> Result<Left, AmpError> {
    let amp = amp();
    let training = training(folder.path(), train, epoch);
    let strategy = match devices {
        [device] => ExecutionStrategy::single(device.clone()),
        many => ExecutionStrategy::multi(many.to_vec(), optim),
    };
    let training = training.with_training_strategy(strategy.into());
    let net = Net::new(&devices[0].clone().autodiff());
    let learner = amp.learner(net, AdamConfig::new().init(), ConstantLr::new(0.05))?;
    let model = amp.training(training).launch(learner).model;
    amp.run_result()?;
    let losses = (1..=4).map(|epoch| {
        let file = folder.path().join(format!("train/epoch-{epoch}/Loss.log"));
        let log = fs::read_to_string(file).unwrap();
        let mut losses: Vec<String> = log.lines().map(String::from).collect();
        losses.sort();
        losses
    });
    Ok(Left {
        parameters: parameters(&*model),
        counters: amp.counters(),
        scale: amp.loss_scale(),
        losses: losses.collect(),
    })
}

fn whole(devices: &[Device], optim: MultiDeviceOptim) -> Left {
    let folder = tempfile::tempdir().unwrap();
    let left = run(devices, optim, &folder, loader(None), None).unwrap();
    assert_eq!(left.counters.skipped(), 4);
    left
}

const WAYS: [MultiDeviceOptim; 2] = [
    MultiDeviceOptim::OptimMainDevice,
    MultiDeviceOptim::OptimSharded,
];

#[test]
fn one_device() {
    let server = Server::new();
    let [remote, local] = [server.device(), flex()].map(|device| whole(&[device.inner()], WAYS[0]));
    assert_eq!(remote, local);
}

/// Of two servers: gradients go from one to the other.
#[test]
fn two_servers() {
    let servers = [Server::new(), Server::new()];
    for optim in WAYS {
        let remote = servers.each_ref().map(|server| server.device().inner());
        let local = [Device::flex(), Device::flex()];
        assert_eq!(whole(&remote, optim), whole(&local, optim), "{optim:?}");
    }
}

/// One server of two ends in the third epoch. The run does, too, with an error; and from its last checkpoint it goes on on other servers, to the end of
/// a run that nothing has disturbed.
#[test]
fn a_server_that_is_killed() {
    for count in [1, 2] {
        let servers: Vec<_> = (0..count)
            .map(|_| Arc::new(Mutex::new(Server::new())))
            .collect();
        let device = |server: &Arc<Mutex<Server>>| server.lock().unwrap().device().inner();
        let devices: Vec<Device> = servers.iter().map(device).collect();
        let last = servers.last().unwrap().clone();
        let kill = move || last.lock().unwrap().kill();
        let train = loader(Some((BATCH * (2 * BATCHES + 3), Box::new(kill))));
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let here = folder.clone();
        let start = Instant::now();
        let ended = losses::ended(move || {
            run(&devices, WAYS[0], &here, train, None).map(|left| left.counters)
        });
        println!("{count} servers: {:?}: {ended:?}", start.elapsed());
        assert!(ended.is_err());

        let servers: Vec<_> = (0..count).map(|_| Server::new()).collect();
        let devices: Vec<_> = servers
            .iter()
            .map(|server| server.device().inner())
            .collect();
        let resumed = run(&devices, WAYS[0], &folder, loader(None), Some(2)).unwrap();
        let undisturbed = whole(&vec![Device::flex(); count], WAYS[0]);
        assert_eq!(resumed, undisturbed);
    }
}

//! Burn's `Learner` on one remote device, and on those of two servers.

use crate::*;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::{Dataset, DatasetError};
use burn::lr_scheduler::constant::ConstantLr;
use burn::nn::loss::{MseLoss, Reduction};
use burn::train::MultiDeviceOptim::{self, OptimMainDevice, OptimSharded};
use burn::train::{
    ExecutionStrategy, InferenceStep, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
    metric::LossMetric, renderer::CliMetricsRenderer,
};
use burn_amp::train::{LearnerExt, Resume};
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
type Batch = (Tensor<2>, Tensor<2>, f32);

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

/// Items, by their numbers: how many were read over all epochs, and what is done with that before the next one.
struct Items(AtomicUsize, Box<dyn Fn(usize) + Send + Sync>);

impl Dataset<usize> for Items {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        (self.1)(self.0.fetch_add(1, Ordering::Relaxed));
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
            gain,
        )
    }
}

type Loader = Arc<dyn DataLoader<Batch>>;

fn loader(before: impl Fn(usize) + Send + Sync + 'static) -> Loader {
    let items = Items(AtomicUsize::new(0), Box::new(before));
    let builder = DataLoaderBuilder::new(Batches).batch_size(BATCH);
    builder.build(items)
}

/// All that a run has left: parameters, counters, the loss scale, and the losses of each epoch as they were logged, where workers come in any order.
type Left = (Parameters, StepCounters, f32, [Vec<String>; 4]);
type Parameters = BTreeMap<String, (u64, Values)>;

/// Trains on these devices, from the checkpoint after `epoch` on if there is one; with the optimizer there, if they are several.
fn run(
    devices: &[Device],
    optim: MultiDeviceOptim,
    folder: &TempDir,
    train: Loader,
    epoch: Option<usize>,
) -> Result<Left, AmpError> {
    let amp = f16_under(at_scale(1024.0).with_growth_interval(4));
    let strategy = match devices {
        [device] => ExecutionStrategy::single(device.clone()),
        many => ExecutionStrategy::multi(many.to_vec(), optim),
    };
    let mut training = SupervisedTraining::new(folder.path(), train, loader(|_| ()))
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_application_logger(None)
        .with_default_checkpointers()
        .with_training_strategy(strategy.into())
        .metrics((LossMetric::new(),))
        .num_epochs(4);
    if let Some(epoch) = epoch {
        training = training.checkpoint(Resume::check(folder.path(), epoch)?.epoch());
    }
    let net = Net::new(&devices[0].clone().autodiff());
    let learner = amp.learner(net, AdamConfig::new().init(), ConstantLr::new(0.05))?;
    let model = amp.training(training).launch(learner).model;
    amp.run_result()?;
    let losses = [1, 2, 3, 4].map(|epoch| {
        let file = folder.path().join(format!("train/epoch-{epoch}/Loss.log"));
        let log = fs::read_to_string(file).unwrap();
        let mut losses: Vec<String> = log.lines().map(String::from).collect();
        losses.sort();
        losses
    });
    let (counters, scale) = (amp.counters(), amp.loss_scale());
    Ok((parameters(&*model), counters, scale, losses))
}

fn whole(devices: &[Device], optim: MultiDeviceOptim) -> Left {
    let folder = tempfile::tempdir().unwrap();
    let left = run(devices, optim, &folder, loader(|_| ()), None).unwrap();
    assert_eq!(left.1.skipped(), 4);
    left
}

/// So many servers, and the device of each.
fn servers(count: usize) -> (Vec<Server>, Vec<Device>) {
    let servers: Vec<_> = (0..count).map(|_| Server::new()).collect();
    let devices = servers.iter().map(|server| server.device().inner());
    let devices = devices.collect();
    (servers, devices)
}

#[test]
fn one_device() {
    let (_server, remote) = servers(1);
    let [remote, local] = [remote, vec![Device::flex()]].map(|on| whole(&on, OptimMainDevice));
    assert_eq!(remote, local);
}

/// Of two servers: gradients go from one to the other.
#[test]
fn two_servers() {
    let (_servers, remote) = servers(2);
    let local = [Device::flex(), Device::flex()];
    for optim in [OptimMainDevice, OptimSharded] {
        assert_eq!(whole(&remote, optim), whole(&local, optim), "{optim:?}");
    }
}

/// One server of two ends in the third epoch. The run does, too, with an error; and from its last checkpoint it goes on on other servers, to the end of
/// a run that nothing has disturbed.
#[test]
fn a_server_that_is_killed() {
    for count in [1, 2] {
        let (mut others, devices) = servers(count);
        let last = Mutex::new(others.pop().unwrap());
        let train = loader(move |read| {
            if read == BATCH * (2 * BATCHES + 3) {
                last.lock().unwrap().kill();
            }
        });
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let here = folder.clone();
        let ended = losses::ended(move || {
            let left = run(&devices, OptimMainDevice, &here, train, None);
            left.map(|(_, counters, ..)| counters)
        });
        ended.expect_err("a run without its server");

        let (_servers, devices) = servers(count);
        let resumed = run(&devices, OptimMainDevice, &folder, loader(|_| ()), Some(2));
        let undisturbed = whole(&vec![Device::flex(); count], OptimMainDevice);
        assert_eq!(resumed.unwrap(), undisturbed);
    }
}

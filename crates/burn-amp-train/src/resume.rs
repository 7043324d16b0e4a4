use burn::data::dataloader::{DataLoader, DataLoaderIterator};
use burn::store::{ModuleRecord, RecordError};
use burn::{lr_scheduler::LrSchedulerRecord, tensor::Device};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use burn_amp_core::{AmpError, AmpRecord, internal::learner::take_optimizer};

/// A checkpoint that was read and found complete, to resume from.
///
/// Burn panics on a checkpoint that it cannot read, and does not name the damaged file. [`check`](Self::check) reads it first, and returns an
/// error that names the file. `directory` is that of the `SupervisedTraining`, whose default checkpointers write into `checkpoint`
/// in it.
///
/// ```no_run
/// use burn::{data::dataloader::DataLoader, train::{LearnerModel, SupervisedTraining, TrainStep}};
/// use burn_amp::train::Resume;
/// # use std::sync::Arc;
/// # fn resume<M: LearnerModel>(
/// #     train: Arc<dyn DataLoader<<M as TrainStep>::Input>>,
/// #     training: impl Fn(Arc<dyn DataLoader<<M as TrainStep>::Input>>) -> SupervisedTraining<M>,
/// # ) -> Result<SupervisedTraining<M>, burn_amp::AmpError> {
///
/// let resume = Resume::check("runs/digits", 3)?;
/// let train = resume.loader(train); // the shuffled order of epoch 4
/// let training = training(train).checkpoint(resume.epoch());
/// # Ok(training)
/// # }
/// ```
///
/// A run that is resumed has the parameters, the optimizer's state, the loss scale, the counters, the averages and the learning
/// rate of one that was never stopped: on Flex bit for bit, if the program is the same and the data comes in the same order.
/// These cannot be restored:
///
/// - the order of a loader with several workers (`num_workers`), which mixes the batches as they come;
/// - the draws of a `SamplerDataset`, and of any dataset that draws at random by itself;
/// - random numbers on the device: those of dropout.
#[derive(Clone, Debug)]
pub struct Resume {
    epoch: usize,
    state: Option<AmpRecord>,
}

impl Resume {
    /// Reads the checkpoint of an epoch as `SupervisedTraining::checkpoint(epoch)` will.
    ///
    /// Reads the heads of the files of model and scheduler, and all of the optimizer's, which holds the scaler's state.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if a file is missing (it names the epochs that are there) or unreadable, [`AmpError::DamagedRecord`] if it is not a record or the
    /// scaler's state in it is damaged, [`AmpError::NewerRecord`] if a later release has written that state, [`AmpError::ForeignRecord`] if it is
    /// another record of Burn's. All name the
    /// file. Damage to the values of a parameter or of the optimizer's state goes unnoticed: Burn's records have no checksum.
    pub fn check(directory: impl AsRef<Path>, epoch: usize) -> Result<Self, AmpError> {
        let folder = directory.as_ref().join("checkpoint");
        let file = |name: &str| folder.join(format!("{name}-{epoch}.bpk"));
        if !file("model").exists() {
            return Err(missing(&folder, epoch));
        }
        head(file("model"), ModuleRecord::load)?;
        head(file("scheduler"), LrSchedulerRecord::load)?;
        let mut record = AmpRecord::load(file("optim"))?;
        take_optimizer(&mut record);
        let state = record.counters().is_some().then_some(record);
        Ok(Self { epoch, state })
    }

    /// The epoch, for `SupervisedTraining::checkpoint`.
    pub fn epoch(&self) -> usize {
        self.epoch
    }

    /// The state of the scaler and the averages of the weights, for [`Ema::load_record`](burn_amp_core::Ema::load_record); none in the
    /// checkpoint of a run without this crate, from which the scaler starts fresh.
    ///
    /// A resumed run has the settings of the program, and warns of those that differ. This takes the stored ones instead:
    ///
    /// ```no_run
    /// use burn_amp::{MixedPrecision, train::Resume};
    ///
    /// let resume = Resume::check("runs/digits", 3)?;
    /// let stored = resume.record().and_then(|record| record.schedule());
    /// let config = stored.map_or_else(Default::default, |schedule| *schedule.config());
    /// let amp = MixedPrecision::f16().with_scaler(config)?;
    /// # let _ = amp;
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    pub fn record(&self) -> Option<&AmpRecord> {
        self.state.as_ref()
    }

    /// The training data loader, brought to where the run has stopped: a loader that shuffles draws a new order for each epoch,
    /// and Burn does not store how far it is. Without `shuffle` it changes nothing.
    ///
    /// The skipped orders are drawn when a run asks for the loader of its device, and, where it iterates over this one
    /// itself, with the first `iter`. That reads no item, except with `num_workers`, whose threads start to read what is then
    /// dropped.
    pub fn loader<O: 'static>(&self, train: Arc<dyn DataLoader<O>>) -> Arc<dyn DataLoader<O>> {
        Arc::new(Advanced::new(train, self.epoch))
    }
}

/// The error for an epoch that has no checkpoint.
fn missing(folder: &Path, epoch: usize) -> AmpError {
    let of_epoch = |name: &str| {
        let epoch = name.strip_prefix("model-")?.strip_suffix(".bpk")?;
        epoch.parse().ok()
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let epochs: BTreeSet<usize> = files
        .filter_map(|file| of_epoch(file.file_name().to_str()?))
        .collect();
    let epochs: Vec<String> = epochs.iter().map(usize::to_string).collect();
    let others = match epochs.is_empty() {
        true => "nor of another".to_string(),
        false => format!("but of {}", epochs.join(", ")),
    };
    let origin = folder.join(format!("model-{epoch}.bpk"));
    let reason = format!("there is no checkpoint of epoch {epoch}, {others}");
    AmpError::record_io(origin.display().to_string(), reason)
}

/// Reads a file of Burn's as far as Burn does before it loads tensors.
fn head<R>(
    path: PathBuf,
    load: impl FnOnce(PathBuf) -> Result<R, RecordError>,
) -> Result<R, AmpError> {
    let origin = path.display().to_string();
    // To tell a file that cannot be read from one that is damaged.
    if let Err(error) = std::fs::File::open(&path) {
        return Err(AmpError::record_io(origin, error.to_string()));
    }
    load(path).map_err(|error| match error {
        RecordError::Io(reason) | RecordError::Validation(reason) => {
            AmpError::damaged(origin, reason)
        }
    })
}

/// Advanced only where it is iterated over: of it, Burn makes loaders for its devices, with random states of their own.
struct Advanced<O> {
    loader: Arc<dyn DataLoader<O>>,
    epochs: usize,
    done: Once,
}

impl<O: 'static> Advanced<O> {
    fn new(loader: Arc<dyn DataLoader<O>>, epochs: usize) -> Self {
        Self {
            loader,
            epochs,
            done: Once::new(),
        }
    }
}

/// Draws the orders of these epochs.
fn advance<O>(loader: &Arc<dyn DataLoader<O>>, epochs: usize) {
    for _ in 0..epochs {
        drop(loader.iter());
    }
}

impl<O: 'static> DataLoader<O> for Advanced<O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        self.done.call_once(|| advance(&self.loader, self.epochs));
        self.loader.iter()
    }

    fn num_items(&self) -> usize {
        self.loader.num_items()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        let loader = self.loader.to_device(device);
        advance(&loader, self.epochs);
        loader
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self::new(self.loader.slice(start, end), self.epochs))
    }
}

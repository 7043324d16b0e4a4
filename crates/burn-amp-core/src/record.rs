//! [`AmpRecord`]: the state of an optimizer, of a loss scale, and further states by their names, in Burn's own container.
//!
//! Our part is one section, with a version and a CRC-32 over everything in the container. Burn's readers ignore it, so an optimizer's record with such a
//! section is still an optimizer's record.

mod container;
mod file;
mod optimizer_state;
mod owners;
mod section;
mod state;

use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, DType};
use std::{collections::BTreeMap, mem::take, ops::Range, path::Path};

pub use container::Container;
pub use file::write_whole;
pub use optimizer_state::OptimizerState;
pub use section::{SECTION, read, write};
pub use state::State;

use crate::{
    error::AmpError, scale::loss_scale::LossScale, scale::step_counters::StepCounters,
    scaler::ScalerState, scaler::accumulation::WindowState, update::ModuleOptim,
    update::module_optim::FRESH, values::ParamTensors,
};

/// The state of a training run, to be stored: that of a [`ScaledOptimizer`](crate::ScaledOptimizer), with its scaler and all that it
/// keeps from step to step, or one of these states alone.
///
/// Made by their owners' `to_record`, taken by their `load_record`; each takes its own part. The file is a burnpack with a version and
/// a checksum. That of an optimizer is one that Burn's `OptimizerRecord::load` reads too, to go on in f32 without this crate;
/// and the file of a plain optimizer loads as a record without a scaler.
///
/// ```
/// use burn_amp::{AmpRecord, GradScalerConfig, torch::GradScaler};
///
/// let scaler = GradScaler::new(GradScalerConfig::new().with_init_scale(1024.0))?;
/// let bytes = scaler.to_record().into_bytes()?;
///
/// let record = AmpRecord::from_bytes(bytes)?;
/// assert_eq!(record.counters().unwrap().steps(), 0);
/// let mut resumed = GradScaler::new(GradScalerConfig::new())?;
/// resumed.load_record(record)?;
/// assert_eq!(resumed.loss_scale(), 1024.0);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone)]
pub struct AmpRecord {
    /// Its name in messages.
    pub(super) origin: String,
    pub(super) optimizer: Option<Container>,
    pub(super) scaler: Option<ScalerState>,
    /// The state of a window, open or empty.
    pub(super) window: Option<WindowState>,
    /// The f32 values of parameters that the model's own record does not have.
    pub(crate) masters: ParamTensors,
    /// The states of hooks, by the hooks' names.
    pub(super) hooks: BTreeMap<String, State>,
    /// The reason why the optimizer's state cannot be stored.
    refused: Option<AmpError>,
}

/// The range of names that begin with a parameter's id and a dot.
pub(super) fn names_of(id: &str) -> Range<String> {
    format!("{id}.")..format!("{id}/")
}

impl AmpRecord {
    pub(super) fn empty() -> Self {
        Self::empty_of("memory")
    }

    /// An empty record with another name in messages.
    pub(super) fn empty_of(origin: &str) -> Self {
        Self {
            origin: origin.to_string(),
            optimizer: None,
            scaler: None,
            window: None,
            masters: ParamTensors::default(),
            hooks: BTreeMap::new(),
            refused: None,
        }
    }

    /// The record of a state that cannot be had.
    pub(crate) fn refused(error: AmpError) -> Self {
        Self {
            refused: Some(error),
            ..Self::empty()
        }
    }

    /// The names of the [hooks](crate::step::hook::Hook) whose states it holds.
    pub fn hooks(&self) -> impl Iterator<Item = &str> {
        self.hooks.keys().map(String::as_str)
    }

    /// The record without the state of a hook, which starts again, or is not there.
    pub fn without_hook(mut self, name: &str) -> Self {
        self.hooks.remove(name);
        self
    }

    /// Refuses to drop the tensors of a hook that is not here.
    pub(super) fn check_left_hooks(&self) -> Result<(), AmpError> {
        let mut hooks = self.hooks.iter();
        match hooks.find(|(_, state)| !state.tensors.is_empty()) {
            Some((name, _)) => Err(self.misfit(format!(
                "it holds the state of the hook `{name}`, which is not here: add the hook, or drop the state with \
                 `AmpRecord::without_hook`"
            ))),
            None => Ok(()),
        }
    }

    /// Drops the states of hooks that are not here, and master weights.
    pub(super) fn drop_rest(&mut self) {
        for name in self.hooks() {
            warn!(
                "{} holds the state of the hook `{name}`, which is not here: it is dropped",
                self.origin
            );
        }
        self.hooks.clear();
        let masters = take(&mut self.masters).len();
        if masters > 0 {
            warn!(
                "{} holds master weights of {masters} parameters, which only a `PipelinedOptimizer` can use: they are dropped, and training \
                 continues from the rounded parameters",
                self.origin
            );
        }
    }

    /// The error for a state that its owner refuses.
    pub(super) fn refused_state(&self, name: &str, reason: &str) -> AmpError {
        AmpError::damaged(&self.origin, format!("`{name}`: {reason}"))
    }

    /// Adds the state of an optimizer. What is wrong with it is the error of the first call that wants it.
    pub(super) fn with_optimizer<O: ModuleOptim>(mut self, optim: &O) -> Self {
        match optim.to_record().and_then(pack) {
            Ok(container) if optim.takes().decision => {
                self.optimizer = Some(container.without_marked(FRESH));
            }
            Ok(container) => self.optimizer = Some(container),
            Err(error) => self.refused = Some(error),
        }
        // Burn would round others when it loads them. An optimizer of one's own need not.
        let is_other = |dtype: DType| dtype.is_float() && dtype != DType::F32;
        let mut tensors = self.optimizer.iter().flat_map(|own| own.tensors.values());
        if tensors.any(|tensor| is_other(tensor.dtype)) {
            let again = self.clone().into_optimizer();
            if let Err(error) = again.and_then(|record| optim.check_record(record)) {
                let reason = format!("it could not be loaded again: {error}");
                self.refused = Some(AmpError::record_io(&self.origin, reason));
            }
        }
        self
    }

    /// The state of the loss scale; none in the record of a plain optimizer, or of one state alone.
    pub fn schedule(&self) -> Option<&LossScale> {
        self.scaler.as_ref().map(|scaler| &scaler.schedule)
    }

    /// Steps taken and skipped; none where there is no [`schedule`](Self::schedule).
    pub fn counters(&self) -> Option<StepCounters> {
        self.scaler.as_ref().map(|scaler| scaler.counters)
    }

    /// The number of the optimizer's state tensors; 0 without an optimizer.
    pub fn num_tensors(&self) -> usize {
        let container = self.optimizer.as_ref();
        container.map_or(0, |container| container.tensors.len())
    }

    /// The record with its own settings of the loss scale, which are loaded in place of the program's: all of
    /// [`GradScalerConfig`](crate::GradScalerConfig) but `enabled`. PyTorch's `load_state_dict` does so too.
    pub fn with_settings(mut self) -> Self {
        if let Some(scaler) = &mut self.scaler {
            scaler.with_settings = true;
        }
        self
    }

    /// The record as a burnpack in memory. Waits for the device.
    ///
    /// # Errors
    ///
    /// What the optimizer's `to_record` has refused. [`AmpError::DamagedRecord`] if a tensor cannot be read, and
    /// [`AmpError::RecordIo`] if the container cannot be written, or the optimizer's state could not be loaded again: Burn loads
    /// it in the default float dtype of `Device::default()`. For f64 parameters,
    /// `Device::default().configure(FloatDType::F64)` at the start of the program sets that, and the run resumes bit for bit. A
    /// model with f32 and f64 parameters cannot be resumed with Burn 0.22.1.
    pub fn into_bytes(self) -> Result<Bytes, AmpError> {
        self.into_container()?.into_bytes()
    }

    /// Reads what [`into_bytes`](Self::into_bytes), or Burn's `OptimizerRecord::into_bytes`, has written. Tensors stay on the host
    /// until it is known on which device their parameters are.
    ///
    /// # Errors
    ///
    /// [`AmpError::DamagedRecord`], [`AmpError::NewerRecord`], and [`AmpError::ForeignRecord`] if it is another record of Burn's.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, AmpError> {
        Self::from_container(Container::from_bytes(bytes, "memory")?)
    }

    /// Writes the record to a file: beside it first, then synced and renamed, so that the old file is whole until the new one
    /// is. Without an extension the file gets `.bpk`, as all of Burn's records. Waits for the device.
    ///
    /// # Errors
    ///
    /// As [`into_bytes`](Self::into_bytes), and [`AmpError::RecordIo`]; a file that was there stays as it was, unless the error
    /// says that the new one is in its place.
    pub fn save(self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.into_container()?.save(path.as_ref())
    }

    /// Reads a file that [`save`](Self::save), a plain Burn optimizer, or a `Learner` as a checkpoint has written. All of it, into memory.
    ///
    /// # Errors
    ///
    /// As [`from_bytes`](Self::from_bytes), and [`AmpError::RecordIo`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AmpError> {
        Self::from_container(Container::load(path.as_ref())?)
    }

    /// Burn's own record of the optimizer, without the state of this crate.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if there is no optimizer in it, [`AmpError::RecordIo`] if the container cannot be rebuilt, and
    /// [`AmpError::DamagedRecord`] if Burn cannot read it.
    pub fn into_optimizer(self) -> Result<OptimizerRecord, AmpError> {
        let container = self.stored_optimizer()?.clone();
        OptimizerRecord::from_bytes(container.into_bytes()?)
            .map_err(|error| AmpError::damaged(&self.origin, error.to_string()))
    }

    /// The shapes of the optimizer's state, by parameter.
    pub(super) fn optimizer_state(&self) -> Result<OptimizerState, AmpError> {
        OptimizerState::of(self.stored_optimizer()?)
    }

    fn stored_optimizer(&self) -> Result<&Container, AmpError> {
        match (&self.refused, &self.optimizer) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(container)) => Ok(container),
            (None, None) => Err(self.foreign("no state of an optimizer")),
        }
    }

    /// The error for a record that lacks what is wanted: says what it holds instead.
    pub(super) fn foreign(&self, lacks: &str) -> AmpError {
        let optimizer = self.optimizer.iter().map(|_| "the state of an optimizer");
        let owners = self.owners().map(|owner| format!("that of {owner}"));
        let parts: Vec<_> = optimizer.map(String::from).chain(owners).collect();
        self.misfit(format!("it holds {lacks}, but {}", parts.join(", ")))
    }

    /// The error for a record that does not fit.
    pub(super) fn misfit(&self, reason: String) -> AmpError {
        AmpError::foreign(&self.origin, reason)
    }

    /// All of it in one container. Waits for the device.
    fn into_container(mut self) -> Result<Container, AmpError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let optimizer = self.optimizer.take();
        let holds_optimizer = optimizer.is_some();
        let mut container = optimizer.unwrap_or_else(|| Container::empty_of(&self.origin));
        let states = self.into_states();
        // Without any, it is the record of a plain optimizer.
        if !states.is_empty() {
            container.seal(&states, holds_optimizer)?;
        }
        Ok(container)
    }

    fn from_container(mut container: Container) -> Result<Self, AmpError> {
        let mut record = Self::empty_of(&container.origin);
        let holds_optimizer = match container.unseal()? {
            Some((states, holds_optimizer)) => {
                record.take_states(states)?;
                holds_optimizer
            }
            None => true,
        };
        if holds_optimizer {
            OptimizerState::of(&container)?;
            record.optimizer = Some(container);
        } else if let Some(name) = container.tensors.keys().next() {
            let reason = format!("tensor `{name}` is that of no parameter");
            return Err(container.damaged(reason));
        }
        Ok(record)
    }
}

/// Describes the state of an optimizer, in words that do not depend on the ids of the parameters. Waits for the device.
pub(crate) fn checksum(record: OptimizerRecord) -> Result<String, AmpError> {
    let state = pack(record)?;
    let mut sum = 0u64;
    for tensor in state.tensors.values() {
        sum += u64::from(crc32fast::hash(&state.bytes_of(tensor)?));
    }
    for number in state.scalars.values() {
        sum += u64::from(crc32fast::hash(format!("{number:?}").as_bytes()));
    }
    let (tensors, numbers) = (state.tensors.len(), state.scalars.len());
    Ok(format!(
        "with {tensors} tensors and {numbers} numbers of the checksum {sum:x}"
    ))
}

/// Burn keeps the parts of its record to itself; its bytes are the way to them.
fn pack(record: OptimizerRecord) -> Result<Container, AmpError> {
    let refused = |reason: String| AmpError::record_io("memory", reason);
    let bytes = record
        .into_bytes()
        .map_err(|error| refused(error.to_string()))?;
    // Its limits are those of a record that is loaded.
    let container = Container::from_bytes(bytes, "memory");
    let mut container = container.map_err(|error| refused(error.to_string()))?;
    // An optimizer that has loaded our file may have kept a part of our section.
    container.take_of(&SECTION.to_string());
    Ok(container)
}

use burn::{
    optim::OptimizerRecord,
    tensor::{Bytes, DType},
};
use std::path::Path;

use super::{RecordOptim, ScaledOptimizer, around::Around, loaded::LoadedState};
use crate::{
    error::AmpError,
    record::{Container, Kind},
    scaler::GradScalerRecord,
};

/// The state of a [`ScaledOptimizer`]: the optimizer's record and the scaler's, in one burnpack, with the micro-batches of an
/// open accumulation window and the averages of the weights.
///
/// A superset of Burn's [`OptimizerRecord`]: `OptimizerRecord::load` reads the same file, to go on in f32 without
/// this crate. And the other way round: the file of a plain optimizer loads as a record whose scaler starts fresh.
pub struct ScaledOptimizerRecord {
    container: Container,
    scaler: Option<GradScalerRecord>,
    around: Around,
}

impl std::fmt::Debug for ScaledOptimizerRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaledOptimizerRecord")
            .field("num_tensors", &self.container.tensors().len())
            .field("scaler", &self.scaler)
            .field("window", &self.window())
            .field("averages", &self.averages())
            .finish()
    }
}

impl ScaledOptimizerRecord {
    /// The scaler's state; none in the record of a plain optimizer.
    pub fn scaler(&self) -> Option<&GradScalerRecord> {
        self.scaler.as_ref()
    }

    /// The number of the optimizer's state tensors.
    pub fn num_tensors(&self) -> usize {
        self.container.tensors().len()
    }

    /// The number of micro-batches in an accumulation window that was open; 0 if none was.
    pub fn window(&self) -> u32 {
        let window = self.around.window.as_ref();
        window.map_or(0, |window| window.len())
    }

    /// The number of parameters whose averages are kept; 0 without averaging.
    pub fn averages(&self) -> usize {
        let ema = self.around.ema.as_ref();
        ema.map_or(0, |ema| ema.parameters())
    }

    /// The record without an open window: the run goes on with an empty one, or without accumulation.
    pub fn without_window(mut self) -> Self {
        self.around.window = None;
        self
    }

    /// The record without averages: the run starts them anew, or goes on without.
    pub fn without_averages(mut self) -> Self {
        self.around.ema = None;
        self
    }

    /// The record as a burnpack in memory.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the container cannot be written.
    pub fn into_bytes(self) -> Result<Bytes, AmpError> {
        self.into_container().into_bytes()
    }

    /// Reads what [`into_bytes`](Self::into_bytes), or Burn's `OptimizerRecord::into_bytes`, has written.
    ///
    /// # Errors
    ///
    /// [`AmpError::DamagedRecord`], [`AmpError::NewerRecord`], and [`AmpError::ForeignRecord`] if it is not an
    /// optimizer's record.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, AmpError> {
        Self::from_container(Container::from_bytes(bytes, "memory")?)
    }

    /// Writes the record to a file: beside it first, then synced and renamed, so that the old file is whole until
    /// the new one is. Without an extension the file gets `.bpk`, as all of Burn's records.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`]; a file that was there stays as it was, unless the error says that the new one is in its place.
    pub fn save(self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.into_container().save(path.as_ref())
    }

    /// Reads a file that [`save`](Self::save), or a plain Burn optimizer, has written. All of it, into memory.
    ///
    /// # Errors
    ///
    /// As [`from_bytes`](Self::from_bytes), and [`AmpError::RecordIo`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AmpError> {
        Self::from_container(Container::load(path.as_ref())?)
    }

    /// Burn's own record, without the scaler's state.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the container cannot be rebuilt.
    pub fn into_optimizer(self) -> Result<OptimizerRecord, AmpError> {
        let origin = self.container.origin().to_string();
        OptimizerRecord::from_bytes(self.container.into_plain_bytes()?).map_err(|error| {
            AmpError::DamagedRecord {
                origin,
                reason: error.to_string(),
            }
        })
    }

    /// All of it in one container again.
    fn into_container(self) -> Container {
        let mut container = self.container;
        self.around.write(&mut container);
        container
    }

    fn new(
        optimizer: OptimizerRecord,
        scaler: GradScalerRecord,
        around: Around,
    ) -> Result<Self, AmpError> {
        // Burn keeps the parts of its record to itself; its bytes are the way to them.
        let bytes = optimizer.into_bytes().map_err(|error| AmpError::RecordIo {
            origin: "memory".to_string(),
            reason: error.to_string(),
        })?;
        // Its limits are those of a record that is loaded.
        let container = Container::from_bytes(bytes, "memory").map_err(|error| match error {
            AmpError::DamagedRecord { origin, reason } => AmpError::RecordIo { origin, reason },
            other => other,
        })?;
        Ok(Self {
            container: container.with_section(Kind::ScaledOptimizer, &scaler),
            scaler: Some(scaler),
            around,
        })
    }

    fn from_container(mut container: Container) -> Result<Self, AmpError> {
        let around = Around::take(&mut container)?;
        let scaler = match container.kind() {
            Some(Kind::ScaledOptimizer) | None => container.section()?,
            Some(_) => return Err(container.foreign("no state of an optimizer")),
        };
        container.check_rest()?;
        check_names(&container).map_err(|reason| AmpError::ForeignRecord {
            origin: container.origin().to_string(),
            reason,
        })?;
        LoadedState::of(&container)?;
        Ok(Self {
            container,
            scaler,
            around,
        })
    }
}

/// Every tensor and scalar of an optimizer's record is named after its parameter, `{id}.{field}`: Burn panics on
/// a tensor without an id, and takes a model's record for an empty optimizer's.
fn check_names(container: &Container) -> Result<(), String> {
    for tensor in container.tensors() {
        let id = tensor.param_id.map(|id| format!("{id}."));
        if !id.is_some_and(|id| tensor.name.starts_with(&id)) {
            return Err(format!(
                "tensor `{}` is not an optimizer's: not the record of an optimizer",
                tensor.name
            ));
        }
    }
    for (name, value) in container.scalars() {
        // Burn's optimizers count their steps, and would overflow.
        if name.ends_with(".time") && u64::try_from(*value).is_ok_and(|time| time > u64::MAX / 2) {
            return Err(format!("`{name}` is {value:?}: no run has counted so far"));
        }
        let id = name.split('.').next().unwrap_or_default();
        if id.parse::<u64>().is_err() {
            return Err(format!(
                "value `{name}` is not an optimizer's: not the record of an optimizer"
            ));
        }
    }
    Ok(())
}

impl<O: RecordOptim> ScaledOptimizer<O> {
    /// The state of optimizer and scaler, of an open window and of averages. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the optimizer's record cannot be packed, or not loaded again: Burn loads an optimizer's state in the
    /// default float dtype of `Device::default()`. For f64 parameters, `Device::default().configure(FloatDType::F64)` at the start
    /// of the program sets that, and the run resumes bit for bit. A model with f32 and f64 parameters cannot be resumed with
    /// Burn 0.22.1.
    pub fn to_record(&self) -> Result<ScaledOptimizerRecord, AmpError> {
        let (optimizer, scaler) = (self.optimizer().to_record(), self.scaler().to_record());
        let record = ScaledOptimizerRecord::new(optimizer, scaler, Around::of(self))?;
        // Burn would round others when it loads them. An optimizer of one's own need not.
        let is_other = |dtype: DType| dtype.is_float() && dtype != DType::F32;
        if (record.container.tensors().iter()).any(|tensor| is_other(tensor.dtype)) {
            let again = ScaledOptimizerRecord {
                container: record.container.clone(),
                scaler: None,
                around: Around::default(),
            };
            let loaded = self.optimizer().check_record(again.into_optimizer()?);
            loaded.map_err(|error| AmpError::RecordIo {
                origin: record.container.origin().to_string(),
                reason: format!("it could not be loaded again: {error}"),
            })?;
        }
        Ok(record)
    }

    /// Takes over a stored state, in the place of all that is here: a window that is open here is dropped. With the record of a
    /// plain optimizer the scaler starts fresh, and with one without averages those start anew; the log says either.
    ///
    /// Unlike Burn's, which silently starts afresh, it refuses the state of another optimizer. Burn builds the tensors on
    /// `Device::default()`, the first GPU backend that was *compiled in*: see [`RecordOptim`].
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`], also for an open window or averages where there is no accumulation or averaging; optimizer,
    /// scaler, window and averages stay as they were.
    pub fn load_record(&mut self, record: ScaledOptimizerRecord) -> Result<(), AmpError> {
        let scaler = record.scaler.clone();
        let origin = record.container.origin().to_string();
        let around = record.around.clone();
        if let Some(reason) = around.misfit(self) {
            return Err(AmpError::ForeignRecord { origin, reason });
        }
        let loaded = LoadedState::of(&record.container)?;
        let optimizer = record.into_optimizer()?;
        self.optimizer_mut()
            .load_record(optimizer)
            .map_err(|error| match error {
                AmpError::ForeignRecord { reason, .. } => AmpError::ForeignRecord {
                    origin: origin.clone(),
                    reason,
                },
                other => other,
            })?;
        let steps = (scaler.as_ref()).map_or(0, |scaler| scaler.counters().stepped());
        if around.starts_averages_late(self, steps) {
            log::warn!(
                "{origin} holds no averages of the weights: they start anew, after {steps} steps"
            );
        }
        around.restore(self);
        self.loaded = Some(loaded);
        match scaler {
            Some(scaler) => self.scaler_mut().load_record(scaler),
            None => {
                self.scaler_mut().reset();
                log::warn!(
                    "{origin} is the record of an optimizer without loss scaling: the scaler starts fresh, at loss scale {}",
                    self.scaler().loss_scale()
                );
            }
        }
        Ok(())
    }

    /// Writes the state to a file; see [`ScaledOptimizerRecord::save`]. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`]; a file that was there stays as it was, unless the error says that the new one is in its place.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.to_record()?.save(path)
    }

    /// Takes over the state in a file; see [`load_record`](Self::load_record).
    ///
    /// # Errors
    ///
    /// Those of [`ScaledOptimizerRecord::load`] and [`load_record`](Self::load_record); optimizer and scaler stay
    /// as they were.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.load_record(ScaledOptimizerRecord::load(path)?)
    }

    /// The state as a burnpack in memory. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the container cannot be written.
    pub fn into_bytes(&self) -> Result<Bytes, AmpError> {
        self.to_record()?.into_bytes()
    }

    /// Takes over the state in a burnpack in memory.
    ///
    /// # Errors
    ///
    /// Those of [`ScaledOptimizerRecord::from_bytes`] and [`load_record`](Self::load_record); optimizer and scaler stay
    /// as they were.
    pub fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        self.load_record(ScaledOptimizerRecord::from_bytes(bytes)?)
    }
}

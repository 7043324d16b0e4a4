use burn::tensor::Bytes;
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::GradScaler;
use crate::{
    error::AmpError,
    loss_scale::{LossScale, StepOutcome},
    record::{Container, Kind},
    step_counters::StepCounters,
};

/// The whole state of a [`GradScaler`]: schedule with its settings and trackers, counters, and the outcome of an
/// iteration that has not been ended by `update`.
///
/// Not in it, because the program says them anew: whether the scaler is enabled, how many skips in a row it allows, and
/// the gradients' dtype. Stored as a burnpack with a version and a checksum.
///
/// ```
/// use burn_amp::{GradScalerConfig, GradScalerRecord};
///
/// let scaler = GradScalerConfig::new().with_init_scale(1024.0).init()?;
/// let bytes = scaler.to_record().into_bytes()?;
///
/// let mut resumed = GradScalerConfig::new().init()?;
/// resumed.load_record(GradScalerRecord::from_bytes(bytes)?);
/// assert_eq!(resumed.loss_scale(), 1024.0);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawRecord")]
pub struct GradScalerRecord {
    pub(super) schedule: LossScale,
    pub(super) counters: StepCounters,
    pub(super) pending: Option<StepOutcome>,
}

/// A stored record before its checks.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRecord {
    schedule: LossScale,
    counters: StepCounters,
    pending: Option<StepOutcome>,
}

impl TryFrom<RawRecord> for GradScalerRecord {
    type Error = String;

    fn try_from(raw: RawRecord) -> Result<Self, String> {
        match raw.counters.contradiction() {
            Some(reason) => Err(reason),
            None => Ok(Self {
                schedule: raw.schedule,
                counters: raw.counters,
                pending: raw.pending,
            }),
        }
    }
}

impl GradScalerRecord {
    /// The state of the schedule.
    pub fn schedule(&self) -> &LossScale {
        &self.schedule
    }

    /// Steps taken and skipped.
    pub fn counters(&self) -> &StepCounters {
        &self.counters
    }

    /// The record as a burnpack in memory.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the container cannot be written.
    pub fn into_bytes(self) -> Result<Bytes, AmpError> {
        self.into_container().into_bytes()
    }

    /// Reads what [`into_bytes`](Self::into_bytes) has written, or the bytes of a
    /// [`ScaledOptimizerRecord`](crate::ScaledOptimizerRecord), which hold a scaler's state too.
    ///
    /// # Errors
    ///
    /// [`AmpError::DamagedRecord`], [`AmpError::ForeignRecord`] if there is no scaler's state in it, and
    /// [`AmpError::NewerRecord`].
    pub fn from_bytes(bytes: Bytes) -> Result<Self, AmpError> {
        Self::from_container(&Container::from_bytes(bytes, "memory")?)
    }

    /// Writes the record to a file: beside it first, then synced and renamed. Without an extension the file
    /// gets `.bpk`, as all of Burn's records.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`]; a file that was there stays as it was, unless the error says that the new one is in its place.
    pub fn save(self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.into_container().save(path.as_ref())
    }

    /// Reads a file that [`save`](Self::save), or a `ScaledOptimizer`, has written.
    ///
    /// # Errors
    ///
    /// As [`from_bytes`](Self::from_bytes), and [`AmpError::RecordIo`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AmpError> {
        Self::from_container(&Container::load(path.as_ref())?)
    }

    fn into_container(self) -> Container {
        Container::empty().with_section(Kind::GradScaler, &self)
    }

    fn from_container(container: &Container) -> Result<Self, AmpError> {
        let foreign = || container.foreign("no state of a loss scaler");
        match container.kind() {
            Some(Kind::GradScaler | Kind::ScaledOptimizer) => {
                container.section()?.ok_or_else(foreign)
            }
            _ => Err(foreign()),
        }
    }
}

impl GradScaler {
    /// The state, to be stored. Does not wait for the device.
    pub fn to_record(&self) -> GradScalerRecord {
        GradScalerRecord {
            schedule: self.schedule(),
            counters: self.counters,
            pending: self.iteration.outcome(),
        }
    }

    /// Takes over a stored state, the schedule's settings included, as PyTorch's `load_state_dict` does.
    ///
    /// A disabled scaler takes it over too, for the day it is enabled.
    pub fn load_record(&mut self, record: GradScalerRecord) {
        self.set_schedule(record.schedule.in_program(&self.config()));
        self.load_counters(record);
    }

    /// Counts from zero. The schedule stays.
    #[cfg(feature = "train")]
    pub(crate) fn reset_counters(&mut self) {
        self.counters = StepCounters::default();
        self.iteration.restore(None);
    }

    /// As [`load_record`](Self::load_record), where the schedule is in place already.
    pub(crate) fn load_counters(&mut self, record: GradScalerRecord) {
        self.counters = record.counters;
        self.iteration.restore(record.pending);
    }

    /// Writes the state to a file; see [`GradScalerRecord::save`].
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`]; a file that was there stays as it was, unless the error says that the new one is in its place.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.to_record().save(path)
    }

    /// Takes over the state in a file; see [`GradScalerRecord::load`].
    ///
    /// # Errors
    ///
    /// Those of [`GradScalerRecord::load`]; the present state stays as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        GradScalerRecord::load(path).map(|record| self.load_record(record))
    }

    /// The state as a burnpack in memory.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the container cannot be written.
    pub fn into_bytes(&self) -> Result<Bytes, AmpError> {
        self.to_record().into_bytes()
    }

    /// Takes over the state in a burnpack in memory.
    ///
    /// # Errors
    ///
    /// Those of [`GradScalerRecord::from_bytes`]; the present state stays as it was.
    pub fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        GradScalerRecord::from_bytes(bytes).map(|record| self.load_record(record))
    }
}

use burn::tensor::Bytes;
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::Ema;
use crate::{
    error::AmpError,
    param_tensors::ParamTensors,
    record::{Container, Kind},
};

const STATE: &str = "burn_amp.ema";
const AVERAGE: &str = ".burn_amp.average";

/// The state of an [`Ema`]: the averages, and how many updates they have seen.
///
/// Not in it, because the program says it anew: the settings. Stored as a burnpack with a version and a checksum.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use burn_amp::{EmaConfig, EmaRecord};
///
/// let model = LinearConfig::new(4, 2).init(&Device::flex().autodiff());
/// let mut ema = EmaConfig::new().init()?;
/// let model = ema.update(model);
/// let bytes = ema.to_record().into_bytes()?;
///
/// let mut resumed = EmaConfig::new().init()?;
/// resumed.load_record(EmaRecord::from_bytes(bytes)?);
/// assert_eq!((resumed.updates(), resumed.parameters()), (1, 2));
/// # let _ = model;
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug)]
pub struct EmaRecord {
    pub(crate) updates: u64,
    pub(crate) averages: ParamTensors,
}

/// What is stored beside the averages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EmaState {
    updates: u64,
}

impl EmaRecord {
    /// The number of updates that the averages have seen.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The number of parameters that are averaged.
    pub fn parameters(&self) -> usize {
        self.averages.len()
    }

    /// The record as a burnpack in memory. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the container cannot be written.
    pub fn into_bytes(self) -> Result<Bytes, AmpError> {
        self.into_container().into_bytes()
    }

    /// Reads what [`into_bytes`](Self::into_bytes) has written, or the bytes of a
    /// [`ScaledOptimizerRecord`](crate::ScaledOptimizerRecord) with averages in it. Averages stay on the host until an update
    /// says on which device their parameters are.
    ///
    /// # Errors
    ///
    /// [`AmpError::DamagedRecord`], [`AmpError::ForeignRecord`] if there are no averages in it, and
    /// [`AmpError::NewerRecord`].
    pub fn from_bytes(bytes: Bytes) -> Result<Self, AmpError> {
        Self::from_container(Container::from_bytes(bytes, "memory")?)
    }

    /// Writes the record to a file: beside it first, then synced and renamed. Without an extension the file
    /// gets `.bpk`, as all of Burn's records. Waits for the device.
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
        Self::from_container(Container::load(path.as_ref())?)
    }

    /// Puts the record beside others. Waits for the device.
    pub(crate) fn write(&self, container: &mut Container) {
        let updates = self.updates;
        container.set_state(STATE, &EmaState { updates });
        container.put_params(&self.averages, AVERAGE);
    }

    /// Takes the record out of a container, if it is there.
    pub(crate) fn take(container: &mut Container) -> Result<Option<Self>, AmpError> {
        let averages = container.take_params(AVERAGE)?;
        let updates = match container.take_state(STATE)? {
            Some(EmaState { updates }) => updates,
            None if averages.len() == 0 => return Ok(None),
            None => return Err(container.damaged("it holds averages without their state")),
        };
        if updates == 0 && averages.len() > 0 {
            return Err(container.damaged("it holds averages of no updates"));
        }
        // The next update counts one more.
        if updates > u64::MAX / 2 {
            return Err(container.damaged(format!("it holds averages of {updates} updates")));
        }
        Ok(Some(Self { updates, averages }))
    }

    fn into_container(self) -> Container {
        let mut container = Container::empty().with_section(Kind::Ema, &());
        self.write(&mut container);
        container
    }

    fn from_container(mut container: Container) -> Result<Self, AmpError> {
        match Self::take(&mut container)? {
            Some(record) => Ok(record),
            None => Err(container.foreign("no averages of weights")),
        }
    }
}

impl Ema {
    /// The state, to be stored: handles to the averages, which the next update copies if the record is still there. Does not
    /// wait for the device; to write the record does.
    pub fn to_record(&self) -> EmaRecord {
        EmaRecord {
            updates: self.updates,
            averages: self.averages.clone(),
        }
    }

    /// Takes over a stored state; the settings stay. Does not wait for the device.
    pub fn load_record(&mut self, record: EmaRecord) {
        self.updates = record.updates;
        self.averages = record.averages;
    }

    /// Writes the state to a file; see [`EmaRecord::save`]. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`]; a file that was there stays as it was, unless the error says that the new one is in its place.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.to_record().save(path)
    }

    /// Takes over the state in a file; see [`EmaRecord::load`].
    ///
    /// # Errors
    ///
    /// Those of [`EmaRecord::load`]; the present state stays as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        EmaRecord::load(path).map(|record| self.load_record(record))
    }

    /// The state as a burnpack in memory. Waits for the device.
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
    /// Those of [`EmaRecord::from_bytes`]; the present state stays as it was.
    pub fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        EmaRecord::from_bytes(bytes).map(|record| self.load_record(record))
    }
}

/// Contents that no release has written, under a checksum that holds.
#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, TensorData};

    fn read(updates: u64, average: Option<DType>) -> Result<u64, String> {
        let mut averages = ParamTensors::default();
        if let Some(dtype) = average {
            let data = TensorData::from([1.0f32, 2.0]).convert_dtype(dtype);
            averages.store(7.into(), data);
        }
        let bytes = EmaRecord { updates, averages }.into_bytes().unwrap();
        let record = EmaRecord::from_bytes(bytes);
        record.map(|record| record.updates()).map_err(|error| {
            assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error}");
            error.to_string()
        })
    }

    #[test]
    fn averages_must_be_wide_and_of_some_update() {
        assert_eq!(read(0, None), Ok(0));
        // Of a module without trained parameters.
        assert_eq!(read(3, None), Ok(3));
        assert_eq!(read(3, Some(DType::F64)), Ok(3));
        let error = read(0, Some(DType::F32)).unwrap_err();
        assert!(error.contains("averages of no updates"), "{error}");
        let error = read(3, Some(DType::F16)).unwrap_err();
        assert!(error.contains("must be f32 or f64"), "{error}");
    }
}

use burn::tensor::Bytes;
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::AccumulationWindow;
use crate::{
    error::AmpError,
    param_tensors::ParamTensors,
    record::{Container, Kind},
};

const STATE: &str = "burn_amp.window";
const SUM: &str = ".burn_amp.sum";

/// The state of an [`AccumulationWindow`]: the sums, of how many micro-batches, and the loss scale that they carry.
///
/// Not in it, because the program says it anew: the settings. Stored as a burnpack with a version and a checksum.
///
/// ```
/// use burn_amp::{AccumulationConfig, AccumulationWindowRecord};
///
/// let window = AccumulationConfig::new(4).init()?;
/// let bytes = window.to_record().into_bytes()?;
///
/// let mut resumed = AccumulationConfig::new(4).init()?;
/// resumed.load_record(AccumulationWindowRecord::from_bytes(bytes)?)?;
/// assert!(resumed.is_empty());
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AccumulationWindowRecord {
    pub(super) state: WindowState,
    pub(super) sums: ParamTensors,
    /// Where it came from, for messages.
    origin: String,
}

/// What is stored beside the sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WindowState {
    pub(super) len: u32,
    pub(super) scale: Option<f32>,
}

impl AccumulationWindowRecord {
    /// The number of micro-batches in the window.
    pub fn len(&self) -> u32 {
        self.state.len
    }

    /// Whether there is no micro-batch in the window.
    pub fn is_empty(&self) -> bool {
        self.state.len == 0
    }

    /// The number of parameters that have a sum.
    pub fn gradients(&self) -> usize {
        self.sums.len()
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
    /// [`ScaledOptimizerRecord`](crate::ScaledOptimizerRecord) with an open window in it. Sums stay on the host until the next
    /// micro-batch says on which device their parameters are.
    ///
    /// # Errors
    ///
    /// [`AmpError::DamagedRecord`], [`AmpError::ForeignRecord`] if there is no window in it, and [`AmpError::NewerRecord`].
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

    /// Reads a file that [`save`](Self::save), or a `ScaledOptimizer` with an open window, has written.
    ///
    /// # Errors
    ///
    /// As [`from_bytes`](Self::from_bytes), and [`AmpError::RecordIo`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AmpError> {
        Self::from_container(Container::load(path.as_ref())?)
    }

    /// Puts the record beside others. Waits for the device.
    pub(crate) fn write(&self, container: &mut Container) {
        container.set_state(STATE, &self.state);
        container.put_params(&self.sums, SUM);
    }

    /// Takes the record out of a container, if it is there.
    pub(crate) fn take(container: &mut Container) -> Result<Option<Self>, AmpError> {
        let sums = container.take_params(SUM)?;
        let state: WindowState = match container.take_state(STATE)? {
            Some(state) => state,
            None if sums.len() == 0 => return Ok(None),
            None => return Err(container.damaged("it holds sums without their state")),
        };
        if state.len == 0 && (sums.len() > 0 || state.scale.is_some()) {
            return Err(container.damaged("it holds sums of no micro-batches"));
        }
        if let Some(scale) = state.scale
            && !(scale.is_finite() && scale > 0.0)
        {
            return Err(container.damaged(format!("the loss scale of its window is {scale}")));
        }
        let origin = container.origin().to_string();
        Ok(Some(Self {
            state,
            sums,
            origin,
        }))
    }

    fn into_container(self) -> Container {
        let mut container = Container::empty().with_section(Kind::AccumulationWindow, &());
        self.write(&mut container);
        container
    }

    fn from_container(mut container: Container) -> Result<Self, AmpError> {
        match Self::take(&mut container)? {
            Some(record) => Ok(record),
            None => Err(container.foreign("no accumulation window")),
        }
    }
}

impl AccumulationWindow {
    /// The state, to be stored: handles to the sums, which the next micro-batch copies if the record is still there. Does not
    /// wait for the device; to write the record does.
    pub fn to_record(&self) -> AccumulationWindowRecord {
        AccumulationWindowRecord {
            state: WindowState {
                len: self.len,
                scale: self.scale,
            },
            sums: self.sums.clone(),
            origin: "memory".to_string(),
        }
    }

    /// Takes over a stored state; the settings stay. An empty record empties the window. Does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if the stored window is full by the settings here, or was summed by the other rule for an
    /// overflow; the present state stays as it was.
    pub fn load_record(&mut self, record: AccumulationWindowRecord) -> Result<(), AmpError> {
        if let Some(reason) = self.misfit(&record) {
            let origin = record.origin;
            return Err(AmpError::ForeignRecord { origin, reason });
        }
        self.restore(record);
        Ok(())
    }

    /// Goes on from a record that fits.
    pub(crate) fn restore(&mut self, record: AccumulationWindowRecord) {
        self.len = record.state.len;
        self.scale = record.state.scale;
        self.sums = record.sums;
    }

    /// Why a stored window cannot be continued with these settings, if it cannot.
    pub(crate) fn misfit(&self, record: &AccumulationWindowRecord) -> Option<String> {
        if record.is_empty() {
            return None;
        }
        let (len, size) = (record.len(), self.config.micro_batches);
        if len >= size {
            return Some(format!(
                "its window holds {len} micro-batches, but a window has {size} here"
            ));
        }
        let (stored, here) = match (record.state.scale, self.drops_micro_batches()) {
            (Some(_), true) => ("SkipWindow", "SkipMicroBatch"),
            (None, false) => ("SkipMicroBatch", "SkipWindow"),
            _ => return None,
        };
        Some(format!(
            "its window was summed by the rule `{stored}`, but the rule is `{here}` here"
        ))
    }

    /// Writes the state to a file; see [`AccumulationWindowRecord::save`]. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`]; a file that was there stays as it was, unless the error says that the new one is in its place.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.to_record().save(path)
    }

    /// Takes over the state in a file; see [`load_record`](Self::load_record).
    ///
    /// # Errors
    ///
    /// Those of [`AccumulationWindowRecord::load`] and [`load_record`](Self::load_record); the present state stays as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.load_record(AccumulationWindowRecord::load(path)?)
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
    /// Those of [`AccumulationWindowRecord::from_bytes`] and [`load_record`](Self::load_record); the present state stays as it
    /// was.
    pub fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        self.load_record(AccumulationWindowRecord::from_bytes(bytes)?)
    }
}

/// Contents that no release has written, under a checksum that holds.
#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, TensorData};

    fn read(len: u32, scale: Option<f32>, sum: Option<DType>) -> Result<u32, String> {
        let mut sums = ParamTensors::default();
        if let Some(dtype) = sum {
            let data = TensorData::from([1.0f32, 2.0]).convert_dtype(dtype);
            sums.store(7.into(), data);
        }
        let state = WindowState { len, scale };
        let record = AccumulationWindowRecord {
            state,
            sums,
            origin: String::new(),
        };
        let record = AccumulationWindowRecord::from_bytes(record.into_bytes().unwrap());
        record.map(|record| record.len()).map_err(|error| {
            assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error}");
            error.to_string()
        })
    }

    #[test]
    fn sums_must_belong_to_micro_batches() {
        assert_eq!(read(0, None, None), Ok(0));
        assert_eq!(read(2, None, None), Ok(2));
        for (scale, sum) in [(None, Some(DType::F32)), (Some(8.0), None)] {
            let error = read(0, scale, sum).unwrap_err();
            assert!(error.contains("sums of no micro-batches"), "{error}");
        }
    }

    #[test]
    fn sums_must_be_wide() {
        for dtype in [DType::F32, DType::F64] {
            assert_eq!(read(1, None, Some(dtype)), Ok(1));
        }
        for dtype in [DType::F16, DType::BF16, DType::I32] {
            let error = read(1, None, Some(dtype)).unwrap_err();
            assert!(error.contains("must be f32 or f64"), "{error}");
            assert!(error.contains("7.burn_amp.sum"), "{error}");
        }
    }

    #[test]
    fn the_loss_scale_must_be_one() {
        assert_eq!(read(1, Some(0.5), None), Ok(1));
        for scale in [0.0, -1.0] {
            let error = read(1, Some(scale), None).unwrap_err();
            assert!(error.contains("loss scale of its window is"), "{error}");
        }
    }
}

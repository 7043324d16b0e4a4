//! [`AmpRecord`]: the state of an optimizer, a scaler, a window, averages, in Burn's own container.
//!
//! Our part is one sealed section: a JSON text in the container's metadata, beside a version, a kind and a CRC-32 over
//! everything in the container (tensors, scalars, metadata). Burn's readers ignore all four, so an optimizer's record with such
//! a section is still an optimizer's record.

mod checksum;
pub(crate) mod container;
mod file;
mod optimizer_state;
mod tensors;

use burn::{
    optim::OptimizerRecord,
    tensor::{Bytes, DType},
};
use std::path::Path;

pub(crate) use container::Container;
use container::Kind;
pub(crate) use optimizer_state::OptimizerState;

use crate::{
    accumulation::{AccumulationWindow, WindowState},
    ema::{Ema, EmaState},
    error::AmpError,
    guard::StepGuard,
    loss_scale::LossScale,
    module_optim::ModuleOptim,
    param_tensors::ParamTensors,
    scaler::{GradScaler, ScalerState},
    step_counters::StepCounters,
};

const WINDOW: &str = "burn_amp.window";
const SUM: &str = ".burn_amp.sum";
const EMA: &str = "burn_amp.ema";
const AVERAGE: &str = ".burn_amp.average";
const MASTER: &str = ".burn_amp.master";
const GUARD: &str = "burn_amp.guard";

/// The state of a training run, to be stored: that of a [`ScaledOptimizer`](crate::ScaledOptimizer), with its scaler, an open
/// accumulation window and averages of the weights, or that of a [`GradScaler`], an [`AccumulationWindow`] or an [`Ema`] alone.
///
/// Made by their `to_record`, taken by their `load_record`; each takes its own part. The file is a burnpack with a version and
/// a checksum. That of an optimizer is one that Burn's `OptimizerRecord::load` reads too, to go on in f32 without this crate;
/// and the file of a plain optimizer loads as a record without a scaler.
///
/// ```
/// use burn_amp::{AmpRecord, GradScalerConfig};
///
/// let scaler = GradScalerConfig::new().with_init_scale(1024.0).init()?;
/// let bytes = scaler.to_record().into_bytes()?;
///
/// let record = AmpRecord::from_bytes(bytes)?;
/// assert_eq!(record.counters().unwrap().steps(), 0);
/// let mut resumed = GradScalerConfig::new().init()?;
/// resumed.load_record(record);
/// assert_eq!(resumed.loss_scale(), 1024.0);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone)]
pub struct AmpRecord {
    origin: String,
    optimizer: Option<Container>,
    pub(crate) scaler: Option<ScalerState>,
    pub(crate) window: Option<WindowState>,
    pub(crate) averages: Option<EmaState>,
    /// The f32 values of parameters that the model's own record does not have.
    pub(crate) masters: Option<ParamTensors>,
    pub(crate) guard: Option<StepGuard>,
    /// Why the optimizer's state cannot be stored.
    refused: Option<AmpError>,
}

impl AmpRecord {
    pub(crate) fn empty() -> Self {
        Self {
            origin: "memory".to_string(),
            optimizer: None,
            scaler: None,
            window: None,
            averages: None,
            masters: None,
            guard: None,
            refused: None,
        }
    }

    /// That of a state that cannot be had.
    pub(crate) fn refused(error: AmpError) -> Self {
        Self {
            refused: Some(error),
            ..Self::empty()
        }
    }

    /// Takes out the state of the optimizer, if there is one and it can be stored.
    #[cfg(feature = "train")]
    pub(crate) fn take_optimizer(&mut self) -> Option<Container> {
        self.optimizer.take()
    }

    /// Adds the state of an optimizer. What is wrong with it is the error of the first call that wants it.
    pub(crate) fn with_optimizer<O: ModuleOptim>(mut self, optim: &O) -> Self {
        match optim.try_to_record().and_then(pack) {
            Ok(container) => self.optimizer = Some(container),
            Err(error) => self.refused = Some(error),
        }
        // Burn would round others when it loads them. An optimizer of one's own need not.
        let is_other = |dtype: DType| dtype.is_float() && dtype != DType::F32;
        let tensors = self.optimizer.iter().flat_map(Container::tensors);
        if tensors.into_iter().any(|tensor| is_other(tensor.dtype)) {
            let again = self.clone().into_optimizer();
            if let Err(error) = again.and_then(|record| optim.check_record(record)) {
                self.refused = Some(AmpError::RecordIo {
                    origin: self.origin.clone(),
                    reason: format!("it could not be loaded again: {error}"),
                });
            }
        }
        self
    }

    /// The state of the loss scale; none in the record of a plain optimizer, a window or averages.
    pub fn schedule(&self) -> Option<&LossScale> {
        self.scaler.as_ref().map(|scaler| &scaler.schedule)
    }

    /// Steps taken and skipped; none where there is no [`schedule`](Self::schedule).
    pub fn counters(&self) -> Option<&StepCounters> {
        self.scaler.as_ref().map(|scaler| &scaler.counters)
    }

    /// The number of the optimizer's state tensors; 0 without an optimizer.
    pub fn num_tensors(&self) -> usize {
        let container = self.optimizer.as_ref();
        container.map_or(0, |container| container.tensors().len())
    }

    /// The number of micro-batches in an accumulation window that was open; 0 if none was.
    pub fn window(&self) -> u32 {
        self.window.as_ref().map_or(0, |window| window.len)
    }

    /// The number of parameters whose averages are kept; 0 without averaging.
    pub fn averages(&self) -> usize {
        let averages = self.averages.as_ref();
        averages.map_or(0, |ema| ema.averages.len())
    }

    /// The number of master weights, which a [`PipelinedOptimizer`](crate::PipelinedOptimizer) stores where the model's own record does not
    /// have them; 0 otherwise.
    pub fn masters(&self) -> usize {
        self.masters.as_ref().map_or(0, ParamTensors::len)
    }

    /// The record with its own settings of the loss scale, which are loaded in place of the program's: all of
    /// [`GradScalerConfig`](crate::GradScalerConfig) but `enabled`. PyTorch's `load_state_dict` does so too.
    pub fn with_settings(mut self) -> Self {
        if let Some(scaler) = &mut self.scaler {
            scaler.with_settings = true;
        }
        self
    }

    /// The record without an open window: the run resumes with an empty one, or without accumulation.
    pub fn without_window(mut self) -> Self {
        self.window = None;
        if let Some(guard) = &mut self.guard {
            guard.drop_window();
        }
        self
    }

    /// The record without averages: the run starts them again, or has none.
    pub fn without_averages(mut self) -> Self {
        self.averages = None;
        self
    }

    /// The record without master weights: the run goes on from the parameters of the model.
    pub fn without_masters(mut self) -> Self {
        self.masters = None;
        self
    }

    /// The record as a burnpack in memory. Waits for the device.
    ///
    /// # Errors
    ///
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

    /// Reads a file that [`save`](Self::save), or a plain Burn optimizer, has written. All of it, into memory.
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
    /// [`AmpError::ForeignRecord`] if there is no optimizer in it, [`AmpError::RecordIo`] if the container cannot be rebuilt.
    pub fn into_optimizer(self) -> Result<OptimizerRecord, AmpError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let foreign = self.foreign("no state of an optimizer");
        let container = self.optimizer.ok_or(foreign)?;
        OptimizerRecord::from_bytes(container.into_plain_bytes()?).map_err(|error| {
            AmpError::DamagedRecord {
                origin: self.origin,
                reason: error.to_string(),
            }
        })
    }

    /// What an optimizer's state is that of, by parameter.
    pub(crate) fn optimizer_state(&self) -> Result<OptimizerState, AmpError> {
        match (&self.refused, &self.optimizer) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(container)) => OptimizerState::of(container),
            (None, None) => Err(self.foreign("no state of an optimizer")),
        }
    }

    /// Where it came from, for messages.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// The error for a record that lacks what is wanted: says what it holds instead.
    pub(crate) fn foreign(&self, lacks: &str) -> AmpError {
        let parts = [
            (self.optimizer.is_some(), "the state of an optimizer"),
            (self.scaler.is_some(), "that of a `GradScaler`"),
            (self.window.is_some(), "that of an `AccumulationWindow`"),
            (self.averages.is_some(), "that of an `Ema`"),
        ];
        let parts: Vec<_> = (parts.iter().filter(|part| part.0).map(|part| part.1)).collect();
        self.misfit(format!("it holds {lacks}, but {}", parts.join(", ")))
    }

    /// The error for a record that does not fit.
    pub(crate) fn misfit(&self, reason: String) -> AmpError {
        AmpError::ForeignRecord {
            origin: self.origin.clone(),
            reason,
        }
    }

    /// All of it in one container. Waits for the device.
    fn into_container(self) -> Result<Container, AmpError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let is_optimizer = self.optimizer.is_some();
        let mut container = self.optimizer.unwrap_or_else(Container::empty);
        container = match (&self.scaler, &self.window) {
            (Some(scaler), _) if is_optimizer => {
                container.with_section(Kind::ScaledOptimizer, scaler)
            }
            (Some(scaler), _) => container.with_section(Kind::GradScaler, scaler),
            // That of a plain optimizer.
            _ if is_optimizer => container,
            (None, Some(_)) => container.with_section(Kind::AccumulationWindow, &()),
            (None, None) => container.with_section(Kind::Ema, &()),
        };
        if let Some(window) = &self.window {
            container.set_state(WINDOW, window);
            container.put_params(&window.sums, SUM);
        }
        if let Some(ema) = &self.averages {
            container.set_state(EMA, ema);
            container.put_params(&ema.averages, AVERAGE);
        }
        if let Some(masters) = &self.masters {
            container.put_params(masters, MASTER);
        }
        if let Some(guard) = &self.guard {
            container.set_state(GUARD, guard);
        }
        Ok(container)
    }

    pub(crate) fn from_container(mut container: Container) -> Result<Self, AmpError> {
        let averages = take_averages(&mut container)?;
        let window = take_window(&mut container)?;
        let masters = container.take_params(MASTER)?;
        let kind = container.kind();
        let scaler: Option<ScalerState> = match kind {
            Some(Kind::GradScaler | Kind::ScaledOptimizer) | None => container.section()?,
            Some(Kind::AccumulationWindow | Kind::Ema) => None,
        };
        if let Some(reason) = scaler.as_ref().and_then(ScalerState::contradiction) {
            return Err(container.damaged(reason));
        }
        let guard: Option<StepGuard> = container.take_state(GUARD)?;
        if let Some(reason) = guard.as_ref().and_then(StepGuard::contradiction) {
            return Err(container.damaged(reason));
        }
        container.check_rest()?;
        let origin = container.origin().to_string();
        let optimizer = match kind {
            Some(Kind::ScaledOptimizer) | None => {
                OptimizerState::of(&container)?;
                Some(container)
            }
            Some(_) => match container.tensors().first() {
                Some(tensor) => {
                    let reason = format!("tensor `{}` is that of no parameter", tensor.name);
                    return Err(container.damaged(reason));
                }
                None => None,
            },
        };
        Ok(Self {
            origin,
            optimizer,
            scaler,
            window,
            averages,
            masters: (masters.len() > 0).then_some(masters),
            guard,
            refused: None,
        })
    }
}

/// Burn keeps the parts of its record to itself; its bytes are the way to them.
fn pack(record: OptimizerRecord) -> Result<Container, AmpError> {
    let refused = |reason: String| AmpError::RecordIo {
        origin: "memory".to_string(),
        reason,
    };
    let bytes = record
        .into_bytes()
        .map_err(|error| refused(error.to_string()))?;
    // Its limits are those of a record that is loaded.
    Container::from_bytes(bytes, "memory").map_err(|error| match error {
        AmpError::DamagedRecord { reason, .. } => refused(reason),
        other => other,
    })
}

fn take_window(container: &mut Container) -> Result<Option<WindowState>, AmpError> {
    let sums = container.take_params(SUM)?;
    let state: WindowState = match container.take_state(WINDOW)? {
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
    Ok(Some(WindowState { sums, ..state }))
}

fn take_averages(container: &mut Container) -> Result<Option<EmaState>, AmpError> {
    let averages = container.take_params(AVERAGE)?;
    let updates = match container.take_state(EMA)? {
        Some(EmaState { updates, .. }) => updates,
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
    Ok(Some(EmaState { updates, averages }))
}

impl std::fmt::Debug for AmpRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AmpRecord")
            .field("origin", &self.origin)
            .field("num_tensors", &self.num_tensors())
            .field("scaler", &self.scaler)
            .field("window", &self.window())
            .field("averages", &self.averages())
            .field("masters", &self.masters())
            .finish()
    }
}

impl GradScaler {
    /// The state, to be stored: the schedule with its settings and trackers, counters, and the outcome of an iteration that has
    /// not been ended by `update`. Does not wait for the device.
    ///
    pub fn to_record(&self) -> AmpRecord {
        AmpRecord {
            scaler: Some(self.state_to_store()),
            ..AmpRecord::empty()
        }
    }

    /// Takes over a stored state: its own, or that of the scaler in an optimizer's record. A disabled scaler takes it over too,
    /// for the day it is enabled. Does not wait for the device.
    ///
    /// Loss scale, trackers and counters are the record's; the settings stay as they are here, unless the record is loaded
    /// [`with_settings`](AmpRecord::with_settings). The log names every setting that differs. Where one does, the skips in a row
    /// are counted from zero, so that a run that ended because of them can be resumed. A scale outside of `min_scale` and `max_scale` is
    /// moved to the nearest of them. A static scale is the program's.
    ///
    /// # Panics
    ///
    /// Where [`try_load_record`](Self::try_load_record) returns an error, with its message.
    pub fn load_record(&mut self, record: AmpRecord) {
        self.try_load_record(record)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`load_record`](Self::load_record), for programs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if there is no state of a scaler in it; the present state stays as it was.
    pub fn try_load_record(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        match &record.scaler {
            Some(state) => {
                self.restore(state.clone(), record.origin());
                Ok(())
            }
            None => Err(record.foreign("no state of a loss scaler")),
        }
    }
}

impl AccumulationWindow {
    /// The state, to be stored: the sums, of how many micro-batches, and the loss scale that they carry. Settings are not
    /// stored: the program sets them. Does not wait for the device; writing the record does.
    ///
    /// The record has handles to the sums, which the next micro-batch copies if the record is still there.
    pub fn to_record(&self) -> AmpRecord {
        AmpRecord {
            window: Some(self.state_to_store()),
            ..AmpRecord::empty()
        }
    }

    /// Takes over a stored state: its own, or that of the window in an optimizer's record. The settings stay. An empty window
    /// empties this one. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// Where [`try_load_record`](Self::try_load_record) returns an error, with its message.
    pub fn load_record(&mut self, record: AmpRecord) {
        self.try_load_record(record)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`load_record`](Self::load_record), for programs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if there is no window in it, or if the stored window is full by the settings here, or was summed by
    /// the other rule for an overflow; the present state stays as it was.
    pub fn try_load_record(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        match &record.window {
            None => return Err(record.foreign("no accumulation window")),
            Some(state) => {
                if let Some(reason) = self.misfit(state) {
                    return Err(record.misfit(reason));
                }
            }
        }
        if let Some(state) = record.window {
            self.restore(state);
        }
        Ok(())
    }
}

impl Ema {
    /// The state, to be stored: the averages, and how many updates they have seen. Settings are not stored: the program sets them.
    /// Does not wait for the device; writing the record does.
    ///
    /// The record has handles to the averages, which the next update copies if the record is still there.
    pub fn to_record(&self) -> AmpRecord {
        AmpRecord {
            averages: Some(self.state_to_store()),
            ..AmpRecord::empty()
        }
    }

    /// Takes over a stored state: its own, or that of the averages in an optimizer's record. The settings stay. Does not wait for
    /// the device.
    ///
    /// # Panics
    ///
    /// Where [`try_load_record`](Self::try_load_record) returns an error, with its message.
    pub fn load_record(&mut self, record: AmpRecord) {
        self.try_load_record(record)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// As [`load_record`](Self::load_record), for programs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if there are no averages in it; the present state stays as it was.
    pub fn try_load_record(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        let Some(state) = record.averages else {
            return Err(record.foreign("no averages of weights"));
        };
        self.restore(state);
        Ok(())
    }
}

/// Contents that no release has written, under a checksum that holds.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::param_tensors::ParamTensors;
    use burn::tensor::TensorData;
    use serde_json::json;

    fn tensors(dtype: Option<DType>) -> ParamTensors {
        let mut tensors = ParamTensors::default();
        if let Some(dtype) = dtype {
            let data = TensorData::from([1.0f32, 2.0]).convert_dtype(dtype);
            tensors.store(7.into(), data);
        }
        tensors
    }

    fn read(record: AmpRecord) -> Result<AmpRecord, String> {
        let record = AmpRecord::from_bytes(record.into_bytes().unwrap());
        record.map_err(|error| {
            assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error}");
            error.to_string()
        })
    }

    fn window(len: u32, scale: Option<f32>, sum: Option<DType>) -> Result<u32, String> {
        let sums = tensors(sum);
        let window = Some(WindowState { len, scale, sums });
        let record = read(AmpRecord {
            window,
            ..AmpRecord::empty()
        });
        record.map(|record| record.window())
    }

    fn averages(updates: u64, average: Option<DType>) -> Result<u64, String> {
        let averages = tensors(average);
        let averages = Some(EmaState { updates, averages });
        let record = read(AmpRecord {
            averages,
            ..AmpRecord::empty()
        });
        record.map(|record| record.averages.unwrap().updates)
    }

    #[test]
    fn sums_must_belong_to_micro_batches() {
        assert_eq!(window(0, None, None), Ok(0));
        assert_eq!(window(2, None, None), Ok(2));
        for (scale, sum) in [(None, Some(DType::F32)), (Some(8.0), None)] {
            let error = window(0, scale, sum).unwrap_err();
            assert!(error.contains("sums of no micro-batches"), "{error}");
        }
    }

    #[test]
    fn sums_must_be_wide() {
        for dtype in [DType::F32, DType::F64] {
            assert_eq!(window(1, None, Some(dtype)), Ok(1));
        }
        for dtype in [DType::F16, DType::BF16, DType::I32] {
            let error = window(1, None, Some(dtype)).unwrap_err();
            assert!(error.contains("must be f32 or f64"), "{error}");
            assert!(error.contains("7.burn_amp.sum"), "{error}");
        }
    }

    #[test]
    fn the_loss_scale_of_a_window_must_be_one() {
        assert_eq!(window(1, Some(0.5), None), Ok(1));
        for scale in [0.0, -1.0] {
            let error = window(1, Some(scale), None).unwrap_err();
            assert!(error.contains("loss scale of its window is"), "{error}");
        }
    }

    #[test]
    fn a_guard_knows_no_more_than_its_window_holds() {
        let guard = |values: Vec<f64>, average: serde_json::Value, rule: serde_json::Value| {
            let norms = json!({"values": values, "sum": 0.0, "sum_sq": 0.0});
            let losses = json!({"values": [], "sum": 0.0, "sum_sq": 0.0});
            let state =
                json!({"guard": rule, "losses": losses, "norms": norms, "average": average});
            let stored = json!({"state": state, "sum": 0.0, "count": 0});
            let record = read(AmpRecord {
                guard: Some(serde_json::from_value(stored).unwrap()),
                ..GradScaler::new(Default::default()).to_record()
            });
            record.map(|record| record.guard.is_some())
        };
        let skip = |length: u32| json!({"SkipStep": {"rolling_interval_length": length}});
        let none = serde_json::Value::Null;
        assert_eq!(guard(vec![1.0; 5], none.clone(), skip(4)), Ok(true));
        let error = guard(vec![1.0; 6], none.clone(), skip(4)).unwrap_err();
        assert!(error.contains("6 values, and at most 5"), "{error}");
        let error = guard(vec![], none.clone(), skip(1)).unwrap_err();
        assert!(error.contains("`rolling_interval_length` is 1"), "{error}");

        let zclip = || json!({"ZClip": {}});
        let average = |var: f64| json!({"mean": 1.0, "var": var});
        assert_eq!(guard(vec![], average(0.5), zclip()), Ok(true));
        assert!(guard(vec![1.0], average(0.5), zclip()).is_err());
        let error = guard(vec![], average(-1.0), zclip()).unwrap_err();
        assert!(error.contains("not finite"), "{error}");
        let nan = json!({"mean": "NaN", "var": 1.0});
        assert!(guard(vec![], nan.clone(), zclip()).is_err());
        let original = json!({"ZClip": {"original": true}});
        assert_eq!(guard(vec![], nan, original), Ok(true));
    }

    #[test]
    fn averages_must_be_wide_and_of_some_update() {
        assert_eq!(averages(0, None), Ok(0));
        // Of a module without trained parameters.
        assert_eq!(averages(3, None), Ok(3));
        assert_eq!(averages(3, Some(DType::F64)), Ok(3));
        let error = averages(0, Some(DType::F32)).unwrap_err();
        assert!(error.contains("averages of no updates"), "{error}");
        let error = averages(3, Some(DType::F16)).unwrap_err();
        assert!(error.contains("must be f32 or f64"), "{error}");
    }
}

use burn::optim::{ModuleOptimizer, OptimizerRecord};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{error::AmpError, record::Container, scaler::ModuleOptim};

/// An optimizer whose state can be stored: what [`ScaledOptimizer`](super::ScaledOptimizer) needs for its own records.
///
/// Implemented for Burn's [`ModuleOptimizer`] and for `&mut O`.
pub trait RecordOptim: ModuleOptim {
    /// The optimizer's state as Burn's record. Waits for the device.
    fn to_record(&self) -> OptimizerRecord;

    /// Takes over a stored state.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if the state does not fit; the present state must stay as it was then.
    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError>;

    /// Whether [`load_record`](Self::load_record) would take a state of this optimizer again. Asked before a state is saved whose
    /// tensors are not all f32. By default it would.
    ///
    /// # Errors
    ///
    /// What `load_record` would return.
    fn check_record(&self, _record: OptimizerRecord) -> Result<(), AmpError> {
        Ok(())
    }
}

impl RecordOptim for ModuleOptimizer {
    fn to_record(&self) -> OptimizerRecord {
        ModuleOptimizer::to_record(self)
    }

    /// Burn builds the tensors on `Device::default()`, the first GPU backend that was *compiled in*, and moves
    /// them at the next step. Where that device does not exist it panics, which is an error here: the environment
    /// variable `BURN_DEVICE` names another device.
    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        let origin = "the optimizer's record";
        let foreign = |reason: String| AmpError::ForeignRecord {
            origin: origin.to_string(),
            reason,
        };
        let packed = |record: OptimizerRecord| {
            record
                .into_bytes()
                .map_err(|error| foreign(error.to_string()))
        };
        let bytes = packed(record)?;
        let stored = Container::from_bytes(bytes.clone(), origin)?;
        let record = OptimizerRecord::from_bytes(bytes).map_err(|e| foreign(e.to_string()))?;
        // Cloning is cheap, and keeps the state that is to survive a failure.
        let optim = self.clone();
        let loaded = catch_unwind(AssertUnwindSafe(|| optim.load_record(record)));
        let loaded = loaded.map_err(|panic| {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            foreign(format!(
                "Burn could not load it ({message}). If that names a device, set `BURN_DEVICE` to one that exists"
            ))
        })?;
        // Burn drops state that the optimizer does not know and converts state to the device's default dtype, both
        // silently; a resumed run would go on with less than was saved.
        let kept = packed(ModuleOptimizer::to_record(&loaded))?;
        let kept = Container::from_bytes(kept, origin)?;
        if let Some(lost) = stored.first_missing_in(&kept)? {
            return Err(foreign(format!(
                "{lost}. It was saved by another optimizer or with other settings, or its dtype is not the default float dtype \
                 of `Device::default()`, in which Burn loads: for a model in f64, call \
                 `Device::default().configure(FloatDType::F64)` at the start of the program"
            )));
        }
        *self = loaded;
        Ok(())
    }

    fn check_record(&self, record: OptimizerRecord) -> Result<(), AmpError> {
        RecordOptim::load_record(&mut self.clone(), record)
    }
}

impl<O: RecordOptim> RecordOptim for &mut O {
    fn to_record(&self) -> OptimizerRecord {
        (**self).to_record()
    }

    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        (**self).load_record(record)
    }

    fn check_record(&self, record: OptimizerRecord) -> Result<(), AmpError> {
        (**self).check_record(record)
    }
}

use burn::optim::{ModuleOptimizer, OptimizerRecord};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{error::AmpError, scaler::ModuleOptim};

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
}

impl RecordOptim for ModuleOptimizer {
    fn to_record(&self) -> OptimizerRecord {
        ModuleOptimizer::to_record(self)
    }

    /// Burn builds the tensors on `Device::default()`, the first GPU backend that was *compiled in*, and moves
    /// them at the next step. Where that device does not exist it panics, which is an error here: the environment
    /// variable `BURN_DEVICE` names another device.
    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        let foreign = |reason: String| AmpError::ForeignRecord {
            origin: "the optimizer's record".to_string(),
            reason,
        };
        let tensors = record.len();
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
        // Burn drops state that the optimizer cannot read, silently; a resumed run would go on without it.
        let kept = ModuleOptimizer::to_record(&loaded).len();
        if kept != tensors {
            return Err(foreign(format!(
                "it holds {tensors} state tensors, of which this optimizer can read {kept}: it was saved by another \
                 optimizer or with other settings"
            )));
        }
        *self = loaded;
        Ok(())
    }
}

impl<O: RecordOptim> RecordOptim for &mut O {
    fn to_record(&self) -> OptimizerRecord {
        (**self).to_record()
    }

    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        (**self).load_record(record)
    }
}

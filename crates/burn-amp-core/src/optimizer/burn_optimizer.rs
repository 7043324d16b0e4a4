//! Burn's own optimizers as optimizers of whole modules, with records that lose nothing.

use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module};
use burn_amp_kernels::panic_message;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::update::module_optim::{ModuleOptim, ORIGIN, foreign};
use crate::{error::AmpError, record::container::Container};

impl ModuleOptim for ModuleOptimizer {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        ModuleOptimizer::step(self, lr, module, grads)
    }

    fn to_record(&self) -> Result<OptimizerRecord, AmpError> {
        Ok(ModuleOptimizer::to_record(self))
    }

    fn check_record(&self, record: OptimizerRecord) -> Result<(), AmpError> {
        ModuleOptim::load_record(&mut self.clone(), record)
    }

    /// Burn builds the tensors on `Device::default()`, the first GPU backend that was *compiled in*, and moves
    /// them at the next step. Where that device does not exist it panics, which is an error here: the environment
    /// variable `BURN_DEVICE` names another device.
    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        let packed = |record: OptimizerRecord| {
            (record.into_bytes()).map_err(|error| foreign(error.to_string()))
        };
        let bytes = packed(record)?;
        let stored = Container::from_bytes(bytes.clone(), ORIGIN)?;
        let record = OptimizerRecord::from_bytes(bytes).map_err(|e| foreign(e.to_string()))?;
        // Cloning is cheap, and keeps the state that is to survive a failure.
        let optim = self.clone();
        let loaded = catch_unwind(AssertUnwindSafe(|| optim.load_record(record)));
        let loaded = loaded.map_err(|panic| {
            let message = panic_message(&*panic);
            foreign(format!(
                "Burn could not load it ({message}). If that names a device, set `BURN_DEVICE` to one that exists"
            ))
        })?;
        // Burn drops state that the optimizer does not know and converts state to the device's default dtype, both
        // silently; a resumed run would go on with less than was saved.
        let kept = packed(ModuleOptimizer::to_record(&loaded))?;
        let kept = Container::from_bytes(kept, ORIGIN)?;
        if let Some(lost) = stored.first_missing_in(&kept)? {
            return Err(foreign(lost));
        }
        *self = loaded;
        Ok(())
    }
}

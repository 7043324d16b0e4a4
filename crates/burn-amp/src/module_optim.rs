use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    optim::{GradientsParams, ModuleOptimizer, OptimizerRecord},
    tensor::DType,
};
use burn_amp_kernels::panic_message;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{error::AmpError, param_tensors::ParamTensors, record::container::Container};

/// An optimizer of whole modules: what [`ScaledOptimizer`](crate::ScaledOptimizer) wraps and
/// [`GradScaler::step`](crate::GradScaler::step) calls.
///
/// Implemented for Burn's [`ModuleOptimizer`] (hence for every `Optimizer`, with its parameter groups and clipping), for
/// [`Fused`](crate::Fused) optimizers, for [`MasterWeights`](crate::MasterWeights), and for `&mut O`. A type of your own needs
/// one method, `step`, and two more to have its state stored:
///
/// ```
/// use burn::{
///     lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module,
///     optim::{GradientsParams, ModuleOptimizer},
/// };
/// use burn_amp::ModuleOptim;
///
/// /// Counts the steps that were not skipped.
/// struct Counted {
///     inner: ModuleOptimizer,
///     steps: usize,
/// }
///
/// impl ModuleOptim for Counted {
///     fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
///         self.steps += 1;
///         self.inner.step(lr, module, grads)
///     }
/// }
/// ```
///
/// [`ScaledOptimizer`](crate::ScaledOptimizer) itself does not implement it: scaling twice does not compile.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer of whole modules",
    note = "a `ScaledOptimizer` cannot be put into another: the gradients would be unscaled twice",
    note = "wrap Burn's `ModuleOptimizer` (what `AdamConfig::init` returns), a `FusedAdam`, a `MasterWeights`, or a type of your own \
            that implements `ModuleOptim`"
)]
pub trait ModuleOptim {
    /// Updates the parameters of `module` that have a gradient. The gradients are unscaled and finite.
    ///
    /// Never called on a step that is skipped.
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M;

    /// Whether a parameter of one dtype can be stepped with a gradient of another.
    ///
    /// By default only if they are the same, as with all of Burn's optimizers. Where it is false, the step is
    /// refused with [`AmpError::HalfPrecisionParameter`].
    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        parameter == gradient
    }

    /// The optimizer's state as Burn's record. Waits for the device, except that Burn's own optimizers on CubeCL devices read when
    /// the record is written or looked at: do that before the next step, which would show in it.
    /// ([`ScaledOptimizer::to_record`](crate::ScaledOptimizer::to_record) has read all of it.)
    ///
    /// # Errors
    ///
    /// [`AmpError::RecordIo`] if the state cannot be stored; by default always.
    fn try_to_record(&self) -> Result<OptimizerRecord, AmpError> {
        Err(AmpError::RecordIo {
            origin: "memory".to_string(),
            reason:
                "this optimizer does not store its state: implement `ModuleOptim::try_to_record`"
                    .to_string(),
        })
    }

    /// Takes over a stored state.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if the state does not fit, by default always; the present state must stay as it was then.
    fn try_load_record(&mut self, _record: OptimizerRecord) -> Result<(), AmpError> {
        Err(foreign(
            "this optimizer does not load a state: implement `ModuleOptim::try_load_record`",
        ))
    }

    /// Whether [`try_load_record`](Self::try_load_record) would take a state of this optimizer again. Asked before a state is saved whose
    /// tensors are not all f32, because Burn would round them. By default it would.
    ///
    /// # Errors
    ///
    /// What `try_load_record` would return.
    fn check_record(&self, _record: OptimizerRecord) -> Result<(), AmpError> {
        Ok(())
    }

    /// The f32 values of half-precision parameters, where the optimizer keeps them: averages are taken of those. By default none.
    #[doc(hidden)]
    fn masters(&self) -> ParamTensors {
        ParamTensors::default()
    }

    /// Whether the device can decide that a step is skipped.
    #[doc(hidden)]
    fn steps_unheard(&self) -> bool {
        false
    }

    /// Whether it multiplies gradients while it steps, so that clipping by a norm takes no pass.
    #[doc(hidden)]
    fn takes_factors(&self) -> bool {
        false
    }

    /// Burn's optimizer with the state of a [`Fused`](crate::Fused) one, whose step is one pass: none by default.
    #[doc(hidden)]
    fn one_pass(&mut self) -> Option<&mut ModuleOptimizer> {
        None
    }
}

impl ModuleOptim for ModuleOptimizer {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        ModuleOptimizer::step(self, lr, module, grads)
    }

    fn try_to_record(&self) -> Result<OptimizerRecord, AmpError> {
        Ok(ModuleOptimizer::to_record(self))
    }

    fn check_record(&self, record: OptimizerRecord) -> Result<(), AmpError> {
        ModuleOptim::try_load_record(&mut self.clone(), record)
    }

    /// Burn builds the tensors on `Device::default()`, the first GPU backend that was *compiled in*, and moves
    /// them at the next step. Where that device does not exist it panics, which is an error here: the environment
    /// variable `BURN_DEVICE` names another device.
    fn try_load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
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
            return Err(foreign(format!(
                "{lost}. It was saved by another optimizer or with other settings, or its dtype is not the default float dtype \
                 of `Device::default()`, in which Burn loads: for a model in f64, call \
                 `Device::default().configure(FloatDType::F64)` at the start of the program"
            )));
        }
        *self = loaded;
        Ok(())
    }
}

const ORIGIN: &str = "the optimizer's record";

fn foreign(reason: impl Into<String>) -> AmpError {
    AmpError::ForeignRecord {
        origin: ORIGIN.to_string(),
        reason: reason.into(),
    }
}

/// The state of an optimizer that has another inside: that of the other.
macro_rules! records_of {
    ($self:ident => $inner:expr) => {
        fn try_to_record(&$self) -> Result<OptimizerRecord, AmpError> {
            ModuleOptim::try_to_record(&$inner)
        }

        fn try_load_record(&mut $self, record: OptimizerRecord) -> Result<(), AmpError> {
            ModuleOptim::try_load_record(&mut $inner, record)
        }

        fn check_record(&$self, record: OptimizerRecord) -> Result<(), AmpError> {
            ModuleOptim::check_record(&$inner, record)
        }
    };
}
pub(crate) use records_of;

impl<O: ModuleOptim> ModuleOptim for &mut O {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        (**self).step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        (**self).accepts(parameter, gradient)
    }

    records_of!(self => **self);

    fn masters(&self) -> ParamTensors {
        (**self).masters()
    }

    fn steps_unheard(&self) -> bool {
        (**self).steps_unheard()
    }

    fn takes_factors(&self) -> bool {
        (**self).takes_factors()
    }

    fn one_pass(&mut self) -> Option<&mut ModuleOptimizer> {
        (**self).one_pass()
    }
}

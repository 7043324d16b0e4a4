use burn::optim::{GradientsParams, OptimizerRecord};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, tensor::DType};

use crate::{
    error::AmpError, gradients::entries::Entry, update::Takes, update::Update, values::ParamTensors,
};

/// An optimizer of whole modules: what [`ScaledOptimizer`](crate::ScaledOptimizer) wraps and
/// `GradScaler::step` calls.
///
/// Implemented for Burn's [`ModuleOptimizer`](burn::optim::ModuleOptimizer) (hence for every `Optimizer`, with its parameter groups and clipping), for
/// `Fused` optimizers, for `MasterWeights`, and for `&mut O`. A type of your own needs
/// one method, `step`, and two more to have its state stored:
///
/// ```
/// use burn::{
///     lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module,
///     optim::{GradientsParams, ModuleOptimizer},
/// };
/// use burn_amp::optim::ModuleOptim;
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
    /// Updates the parameters of `module` that have a gradient. The gradients are unscaled and finite; with a disabled scaler nobody has tested them.
    ///
    /// Never called on a step that is skipped.
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M;

    /// Tells whether a parameter of one dtype can be stepped with a gradient of another.
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
    fn to_record(&self) -> Result<OptimizerRecord, AmpError> {
        let reason = "this optimizer does not store its state: implement `ModuleOptim::to_record`";
        Err(AmpError::record_io("memory", reason))
    }

    /// Takes over a stored state.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if the state does not fit, by default always; the present state must stay as it was then.
    fn load_record(&mut self, _record: OptimizerRecord) -> Result<(), AmpError> {
        Err(foreign(
            "this optimizer does not load a state: implement `ModuleOptim::load_record`",
        ))
    }

    /// Tells whether [`load_record`](Self::load_record) would take a state of this optimizer again. Called before a state is saved whose
    /// tensors are not all f32, because Burn would round them. By default it would.
    ///
    /// # Errors
    ///
    /// What `load_record` would return.
    fn check_record(&self, _record: OptimizerRecord) -> Result<(), AmpError> {
        Ok(())
    }

    /// Refuses settings that are out of their range. Called before each step, and before a state is loaded. By default it refuses none.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] for the first setting that is refused.
    fn check_settings(&self) -> Result<(), AmpError> {
        Ok(())
    }

    /// The f32 values of half-precision parameters, where the optimizer keeps them: averages are taken of those. By default none.
    #[doc(hidden)]
    fn masters(&self) -> ParamTensors {
        ParamTensors::default()
    }

    /// The inputs that [`update`](Self::update) takes beside a learning rate. By default none.
    #[doc(hidden)]
    fn takes(&self) -> Takes {
        Takes::default()
    }

    /// Makes the step of an optimizer that [`takes`](Self::takes) more than a learning rate.
    #[doc(hidden)]
    fn update<M: Module>(&mut self, update: Update, module: M, grads: GradientsParams) -> M {
        self.step(update.lr, module, grads)
    }
}

/// Refuses gradients of dtypes that an optimizer cannot combine with their parameters.
pub(crate) fn check_accepted<O: ModuleOptim>(
    optim: &O,
    entries: &[Entry],
    dtype: impl Fn(&Entry) -> DType,
) -> Result<(), AmpError> {
    let refused = |entry: &&Entry| !optim.accepts(entry.parameter, dtype(entry));
    match entries.iter().find(refused) {
        None => Ok(()),
        Some(entry) => Err(entry.misfit(dtype(entry))),
    }
}

/// The scalar of a record that marks the state of a parameter that no step has changed yet: it is not stored.
pub const FRESH: &str = "fresh";

pub(crate) const ORIGIN: &str = "the optimizer's record";

pub(crate) fn foreign(reason: impl Into<String>) -> AmpError {
    AmpError::foreign(ORIGIN, reason)
}

/// The state of an optimizer that has another inside: that of the other.
#[doc(hidden)]
#[macro_export]
macro_rules! records_of {
    ($self:ident => $inner:expr) => {
        fn to_record(&$self) -> Result<burn::optim::OptimizerRecord, $crate::AmpError> {
            $crate::ModuleOptim::to_record(&$inner)
        }

        fn load_record(&mut $self, record: burn::optim::OptimizerRecord) -> Result<(), $crate::AmpError> {
            $crate::ModuleOptim::load_record(&mut $inner, record)
        }

        fn check_record(&$self, record: burn::optim::OptimizerRecord) -> Result<(), $crate::AmpError> {
            $crate::ModuleOptim::check_record(&$inner, record)
        }
    };
}

impl<O: ModuleOptim> ModuleOptim for &mut O {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        (**self).step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        (**self).accepts(parameter, gradient)
    }

    records_of!(self => **self);

    fn check_settings(&self) -> Result<(), AmpError> {
        (**self).check_settings()
    }

    fn masters(&self) -> ParamTensors {
        (**self).masters()
    }

    fn takes(&self) -> Takes {
        (**self).takes()
    }

    fn update<M: Module>(&mut self, update: Update, module: M, grads: GradientsParams) -> M {
        (**self).update(update, module, grads)
    }
}

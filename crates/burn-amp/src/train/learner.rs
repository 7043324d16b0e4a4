use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLrScheduler,
    module::Module,
    optim::ModuleOptimizer,
    tensor::DType,
    train::{InferenceStep, Learner},
};
use std::fmt::Display;

use super::{LossStep, Scaled};
use crate::{
    error::AmpError,
    loss_scale::InvalidValue,
    optim::{MasterOptimizer, ScaledOptimizer, StepOptions},
    scaler::ModuleOptim,
};

impl<O: ModuleOptim + Into<ModuleOptimizer>> ScaledOptimizer<O> {
    /// A Burn `Learner` that trains `model` with this optimizer and its loss scaler.
    ///
    /// Takes the place of `Learner::new(model, optim, lr_scheduler)`. Works with Burn's `ModuleOptimizer`, its groups and
    /// clipping, and with [`MasterWeights`](crate::MasterWeights). [`with_clipping`](Self::with_clipping) and
    /// [`with_ema`](Self::with_ema) go with it, and so does state that was loaded before; metrics get
    /// [`monitor`](Self::monitor), before or after. Does not wait for the device.
    ///
    /// Accumulation is Burn's `grads_accumulation`. An optimizer with [`with_accumulation`](Self::with_accumulation) is refused:
    /// [`try_into_learner`](Self::try_into_learner) says so at once, and the run of the learner that is returned here
    /// ends at its first step, with the same error, as any run that fails (see [`Scaled`]).
    pub fn into_learner<M>(
        self,
        model: M,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Learner<Scaled<M>>
    where
        M: LossStep + InferenceStep + Module + Display + 'static,
    {
        let mut model = Scaled::new(model, self.scaler().clone());
        model.monitor = self.monitor();
        model.refusal = self.refusal();
        model.options = StepOptions {
            window: None,
            ..self.options.clone()
        };
        model.mixed = self.optimizer().accepts(DType::F16, DType::F32);
        Learner::new(model, self.into_inner().into(), lr_scheduler)
    }

    /// As [`into_learner`](Self::into_learner), for an optimizer whose settings are not known here, as one from a file.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] for an optimizer with [`with_accumulation`](Self::with_accumulation): a Learner accumulates by
    /// `SupervisedTraining::grads_accumulation`, which sums.
    pub fn try_into_learner<M>(
        self,
        model: M,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<Learner<Scaled<M>>, AmpError>
    where
        M: LossStep + InferenceStep + Module + Display + 'static,
    {
        match self.refusal() {
            Some(refusal) => Err(refusal),
            None => Ok(self.into_learner(model, lr_scheduler)),
        }
    }

    fn refusal(&self) -> Option<AmpError> {
        let count = self.window()?.config().micro_batches;
        let allowed = format!(
            "left out for a Learner, which accumulates by `SupervisedTraining::grads_accumulation({count})`"
        );
        Some(InvalidValue::new("with_accumulation", count, allowed).into())
    }
}

/// Burn's own optimizer, its masters in its state, for a `Learner`. Built by hand from it, with [`Scaled::new`] and
/// `Learner::new`, a `Learner` refuses half-precision parameters: [`ScaledOptimizer::into_learner`] tells the model that they
/// have masters.
impl From<MasterOptimizer> for ModuleOptimizer {
    fn from(optim: MasterOptimizer) -> Self {
        optim.into_inner()
    }
}

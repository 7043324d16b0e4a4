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
    optim::{MasterOptimizer, ScaledOptimizer},
    scaler::ModuleOptim,
};

impl<O: ModuleOptim + Into<ModuleOptimizer>> ScaledOptimizer<O> {
    /// A Burn `Learner` that trains `model` with this optimizer and its loss scaler.
    ///
    /// Takes the place of `Learner::new(model, optim, lr_scheduler)`. Works with Burn's `ModuleOptimizer`, its groups and
    /// clipping, and with [`MasterWeights`](crate::MasterWeights). [`with_clipping`](Self::with_clipping) goes with it; accumulation is
    /// Burn's `grads_accumulation`, and averages of the weights are left out (the log says so). State that was loaded before goes with it; metrics get
    /// [`monitor`](Self::monitor), before or after.
    pub fn into_learner<M>(
        self,
        model: M,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Learner<Scaled<M>>
    where
        M: LossStep + InferenceStep + Module + Display + 'static,
    {
        if self.window().is_some() {
            log::warn!(
                "a Learner accumulates by `SupervisedTraining::grads_accumulation`: `with_accumulation` is left out"
            );
        }
        if self.ema().is_some() {
            log::warn!(
                "a Learner's checkpoints hold no averages of the weights: `with_ema` is left out"
            );
        }
        let mut model = Scaled::new(model, self.scaler().clone());
        model.monitor = self.monitor();
        model.clip = self.clipping().cloned();
        model.mixed = self.optimizer().accepts(DType::F16, DType::F32);
        Learner::new(model, self.into_inner().into(), lr_scheduler)
    }
}

impl From<MasterOptimizer> for ModuleOptimizer {
    fn from(optim: MasterOptimizer) -> Self {
        optim.into_inner()
    }
}

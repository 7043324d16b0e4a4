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
    /// clipping, and with [`MasterWeights`](crate::MasterWeights). State that was loaded before goes with it; metrics get
    /// [`monitor`](Self::monitor), before or after.
    pub fn into_learner<M>(
        self,
        model: M,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Learner<Scaled<M>>
    where
        M: LossStep + InferenceStep + Module + Display + 'static,
    {
        let monitor = self.monitor();
        let scaler = self.scaler().clone();
        let mixed = self.optimizer().accepts(DType::F16, DType::F32);
        let model = Scaled::with_monitor(model, scaler, monitor, mixed);
        Learner::new(model, self.into_inner().into(), lr_scheduler)
    }
}

impl From<MasterOptimizer> for ModuleOptimizer {
    fn from(optim: MasterOptimizer) -> Self {
        optim.into_inner()
    }
}

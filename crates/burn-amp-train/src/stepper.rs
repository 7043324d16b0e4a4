//! Burn's optimizer, as the steps of a run call it.

use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module};

use burn_amp_core::internal::{ParamTensors, Update, masters_of};
use burn_amp_core::{ModuleOptim, records_of};

use burn_amp_optim::internal::one_pass;

/// What Burn's `ModuleOptimizer` does not say of the optimizer that it was made of.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// Whether it combines half-precision parameters with f32 gradients.
    pub(super) mixed: bool,
    /// Whether it steps all parameters by itself, in one pass. Otherwise the model's own `optimize` calls it.
    pub(super) fused: bool,
    /// Where it steps on a thread of its own.
    pub(super) thread: Option<OptimizerThread>,
}

/// Where a thread steps: the device of its masters, and whether each step waits for it.
#[derive(Clone, Debug)]
pub(super) struct OptimizerThread {
    pub(super) host: Device,
    pub(super) synchronous: bool,
}

/// Burn's optimizer, and of what kind it is.
pub(super) struct Stepper {
    pub(super) optim: ModuleOptimizer,
    pub(super) kind: Kind,
}

impl ModuleOptim for Stepper {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.optim.step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.kind.mixed || parameter == gradient
    }

    records_of!(self => self.optim);

    fn masters(&self) -> ParamTensors {
        match self.kind.mixed {
            true => masters_of(&self.optim),
            false => ParamTensors::default(),
        }
    }

    fn steps_on_device(&self) -> bool {
        self.kind.fused
    }

    fn takes_factors(&self) -> bool {
        self.kind.fused && !self.optim.has_gradient_clipping()
    }

    fn update<M: Module>(&mut self, update: Update, module: M, grads: GradientsParams) -> M {
        match self.kind.fused {
            true => one_pass(&mut self.optim, update, module, grads),
            false => self.step(update.lr, module, grads),
        }
    }
}

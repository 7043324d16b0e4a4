//! Burn's optimizer, as the steps of a run call it.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    optim::{GradientsParams, ModuleOptimizer, OptimizerRecord, SgdConfig},
    tensor::DType,
};
use std::mem::swap;

use crate::{
    error::AmpError,
    master_weights::masters_of,
    module_optim::{ModuleOptim, records_of},
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
};

/// What Burn's `ModuleOptimizer` does not tell of the optimizer that it was made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Whether it combines half-precision parameters with f32 gradients.
    pub(super) mixed: bool,
    /// Whether it steps all parameters by itself, in one pass, in place of the model's own `optimize`.
    pub(super) fused: bool,
}

impl Kind {
    pub(super) fn of(optim: &impl ModuleOptim) -> Self {
        Self {
            mixed: optim.accepts(DType::F16, DType::F32),
            fused: optim.steps_on_device(),
        }
    }

    /// That of an optimizer which the model's own `optimize` calls.
    pub(super) fn stepped_by_model(self) -> Self {
        Self {
            fused: false,
            ..self
        }
    }
}

/// Burn's optimizer, and of what kind it is.
pub(super) struct Stepper {
    pub(super) optim: ModuleOptimizer,
    kind: Kind,
}

impl Stepper {
    pub(super) fn without_optimizer(kind: Kind) -> Self {
        Self {
            optim: SgdConfig::new().init(),
            kind,
        }
    }

    /// Another optimizer of this kind.
    pub(super) fn with(&self, optim: ModuleOptimizer) -> Self {
        Self { optim, ..*self }
    }
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

    fn one_pass(&mut self) -> Option<&mut ModuleOptimizer> {
        self.kind.fused.then_some(&mut self.optim)
    }
}

/// The learner's optimizer in the place of that which steps, until this is dropped: after a panic of the model's own `optimize`, too.
pub(super) struct Lent<'a> {
    optim: &'a mut ModuleOptimizer,
    pub(super) steps: &'a mut ScaledOptimizer<Stepper>,
}

impl<'a> Lent<'a> {
    pub(super) fn new(
        optim: &'a mut ModuleOptimizer,
        steps: &'a mut ScaledOptimizer<Stepper>,
    ) -> Self {
        swap(optim, &mut steps.optimizer_in_flight().optim);
        Self { optim, steps }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        swap(self.optim, &mut self.steps.optimizer_in_flight().optim);
    }
}

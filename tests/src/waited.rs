//! Optimizers of ours beside themselves.

use crate::prelude::*;
use burn_amp_core::internal::{Takes, Update};

/// The same optimizer, whose outcomes are waited for.
#[derive(Clone)]
pub struct Waited<O>(
    /// The optimizer.
    pub O,
);

impl<O: ModuleOptim> ModuleOptim for Waited<O> {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.0.step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.0.accepts(parameter, gradient)
    }

    fn to_record(&self) -> Result<OptimizerRecord, AmpError> {
        self.0.to_record()
    }

    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        self.0.load_record(record)
    }

    fn takes(&self) -> Takes {
        Takes {
            decision: false,
            ..self.0.takes()
        }
    }

    fn update<M: Module>(&mut self, update: Update, module: M, grads: GradientsParams) -> M {
        self.0.update(update, module, grads)
    }
}

/// Burn's optimizer in a type of a program's own, which is shown the gradients of each step before it is taken.
pub struct Observed<F>(
    /// Burn's.
    pub ModuleOptimizer,
    /// Who looks at the values of all gradients.
    pub F,
);

impl<F: FnMut(Vec<f32>)> ModuleOptim for Observed<F> {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        let found = gradients_by_path(&grads, &module).into_iter();
        (self.1)(found.flat_map(|(.., values)| values).collect());
        self.0.step(lr, module, grads)
    }
}

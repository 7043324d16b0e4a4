use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    tensor::Tensor,
};
use std::collections::HashSet;

use super::{EmaConfig, overwrite::overwrite};
use crate::{gradients::working_dtype, module_path::ModulePath, param_tensors::ParamTensors};

/// An exponential moving average of the trainable parameters: `average = momentum * average + (1 - momentum) * value`.
///
/// The first update takes the parameters as they are, as Keras does (and PyTorch's `AveragedModel`), so that there is no
/// bias to correct. Averages are f32 for f16, bf16 and f32 parameters, f64 for f64 ones: at a momentum of 0.99 and more,
/// f16 would lose most updates. Parameters that are frozen, and running statistics, are not averaged: the averaged copy has
/// the model's.
///
/// Memory: 4 bytes for each trainable value. An update is one pass, in place.
///
/// A value: a clone goes its own way, and shares memory until then.
#[derive(Clone, Debug)]
pub struct Ema {
    config: EmaConfig,
    pub(crate) averages: ParamTensors,
    pub(super) updates: u64,
}

impl Ema {
    pub(super) fn new(config: EmaConfig) -> Self {
        Self {
            config,
            averages: ParamTensors::default(),
            updates: 0,
        }
    }

    /// The settings.
    pub fn config(&self) -> &EmaConfig {
        &self.config
    }

    /// The number of updates so far: steps that were not skipped.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The number of parameters that are averaged; 0 before the first update.
    pub fn parameters(&self) -> usize {
        self.averages.len()
    }

    /// The average of a parameter, f32 or f64; none before the first update, or if it is not averaged. A handle to the
    /// same memory, on `module`'s device; does not wait.
    pub fn get<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        self.averages.get(param.id, &param.device().inner())
    }

    /// Takes the parameters after a step into the average. Not to be called after a skipped step.
    ///
    /// Returns the module as it came, or, at every `overwrite_frequency`-th update, with its parameters replaced by their
    /// averages. Every call counts, also after a step without gradients (Keras ignores such a step), or on a module without
    /// trainable parameters. A parameter whose shape has changed starts anew, which the log says. Does not wait for the device.
    pub fn update<M: Module>(&mut self, module: M) -> M {
        let mut update = Update {
            averages: &mut self.averages,
            momentum: self.config.momentum,
            path: ModulePath::default(),
            seen: HashSet::new(),
        };
        module.visit(&mut update);
        self.updates += 1;
        match self.config.overwrite_frequency {
            Some(frequency) if self.updates.is_multiple_of(frequency.into()) => {
                self.finalize(module)
            }
            _ => module,
        }
    }

    /// A copy of the module with the averages in place of its parameters, for evaluation while training goes on.
    ///
    /// As [`finalize`](Self::finalize) otherwise.
    pub fn module<M: Module>(&self, module: &M) -> M {
        self.finalize(module.clone())
    }

    /// Replaces the parameters by their averages: the end of the training, as Keras's `finalize_variable_values`.
    ///
    /// Averages are rounded to the parameters' dtypes and are on their devices; ids and trainability stay. What has no average
    /// stays as it is: frozen parameters, and all of them before the first update. So does, with a warning in the log, a
    /// parameter of another shape than its average. Does not wait for the device.
    pub fn finalize<M: Module>(&self, module: M) -> M {
        overwrite(module, &self.averages)
    }

    /// Starts afresh.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.config.clone());
    }
}

struct Update<'a> {
    averages: &'a mut ParamTensors,
    momentum: f64,
    path: ModulePath,
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for Update<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A parameter shared by two modules is met twice, and averaged once.
        if !param.is_require_grad() || !self.seen.insert(param.id) {
            return;
        }
        let value = param.base().inner();
        let known = self.averages.shape(param.id).cloned();
        let old = known.filter(|shape| *shape != value.shape());
        if let Some(old) = &old {
            let (path, new) = (self.path.join(), value.shape());
            log::warn!("`{path}` has shape {new}, but its average has {old}: it starts anew");
        }
        let average = match self.averages.take::<D>(param.id, &value.device()) {
            Some(average) if old.is_none() => {
                burn_amp_kernels::blend(average, value, self.momentum, 1.0 - self.momentum)
            }
            // The first time it shares the parameter's memory, which the next step leaves to it.
            _ => {
                let working = working_dtype(value.dtype());
                value.cast(working)
            }
        };
        self.averages.insert(param.id, average);
    }
}

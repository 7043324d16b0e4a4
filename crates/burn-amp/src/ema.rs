//! Averages of a model's weights, for evaluation and for the end of the training.

use burn::{
    config::Config,
    module::{Module, Param, ParamId},
    tensor::{DType, Device, Tensor},
};
use burn_amp_kernels::{blend, blend_unless};
use serde::{Deserialize, Serialize};
use std::{cell::LazyCell, collections::HashSet};

use crate::{
    convert::replace_value,
    dtype::{is_half, working_dtype},
    error::AmpError,
    module_path::{self, ModulePath},
    param_tensors::ParamTensors,
};

/// How weights are averaged: Keras's `ema_momentum` and `ema_overwrite_frequency`, and its defaults.
#[derive(Config, Debug, PartialEq)]
pub struct EmaConfig {
    /// The weight of the average so far; that of the new value is 1 less this. From 0 to 1.
    #[config(default = 0.99)]
    pub momentum: f64,
    /// After this many updates, and then again, the model's parameters are replaced by their averages. None: only by
    /// [`Ema::finalize`].
    pub overwrite_frequency: Option<u32>,
    /// Whether a `Learner` validates with the averages in place of the parameters (feature `train`). Other programs use
    /// [`Ema::module`] for it.
    #[config(default = false)]
    pub validation: bool,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl EmaConfig {
    /// Checks the settings. The average starts with the first update.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the momentum is not between 0 and 1, or the frequency 0.
    pub fn init(&self) -> Result<Ema, AmpError> {
        if !(0.0..=1.0).contains(&self.momentum) {
            return Err(AmpError::invalid(
                "momentum",
                self.momentum,
                "between 0 and 1",
            ));
        }
        if self.overwrite_frequency == Some(0) {
            return Err(AmpError::invalid("overwrite_frequency", 0, "at least 1"));
        }
        Ok(Ema::new(self.clone()))
    }
}

/// An exponential moving average of the trainable parameters: `average = momentum * average + (1 - momentum) * value`.
///
/// The first update takes the parameters as they are, as Keras does (and PyTorch's `AveragedModel`), so that there is no
/// bias to correct. Averages are f32 for f16, bf16 and f32 parameters, f64 for f64 ones: at a momentum of 0.99 and more,
/// f16 would lose most updates. Parameters that are frozen, and running statistics, are not averaged: the averaged copy has
/// the model's.
///
/// Memory: 4 bytes for each trainable value. An update is one pass, in place.
///
/// [`ScaledOptimizer::with_ema`](crate::ScaledOptimizer::with_ema) keeps one and updates it at every step that was not
/// skipped; its record holds them. With a [`GradScaler`](crate::GradScaler), update one yourself:
///
/// ```
/// use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
/// use burn_amp::{EmaConfig, GradScalerConfig, StepOutcome};
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(4, 2).init(&device);
/// let mut optim = SgdConfig::new().init();
/// let mut scaler = GradScalerConfig::new().init()?;
/// let mut ema = EmaConfig::new().with_momentum(0.9).init()?;
///
/// for _ in 0..10 {
///     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
///     let grads = scaler.unscale(scaler.backward(model.forward(input).mean(), &model), &model);
///     model = scaler.step(&mut optim, 0.1, model, grads);
///     // Of this very step: `update` gives the joint outcome of all optimizers, and none where each micro-batch moves the scale.
///     if scaler.last_outcome() == Some(StepOutcome::Stepped) {
///         model = ema.update(model);
///     }
///     scaler.update();
/// }
/// let averaged = ema.module(&model); // to evaluate; training goes on with `model`
/// assert_eq!(averaged.weight.id, model.weight.id);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// A value: a clone is independent, and shares memory until one of the two is updated.
#[derive(Clone, Debug)]
pub struct Ema {
    config: EmaConfig,
    pub(crate) averages: ParamTensors,
    updates: u64,
    /// Whether the averages were loaded, and no module was met since.
    loaded: bool,
}

impl Ema {
    fn new(config: EmaConfig) -> Self {
        Self {
            config,
            averages: ParamTensors::default(),
            updates: 0,
            loaded: false,
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

    /// Updates the averages with the parameters after a step. Do not call it after a skipped step.
    ///
    /// Returns the module unchanged, or, at every `overwrite_frequency`-th update, with its parameters replaced by their
    /// averages. Every call counts, also after a step without gradients (Keras ignores such a step), or on a module without
    /// trainable parameters. The average of a parameter whose shape has changed starts again, and averages that were loaded for other parameters
    /// are not used: the log says both. Does not wait for the device.
    ///
    /// A half-precision parameter is averaged as it is, rounded. Inside a [`ScaledOptimizer`](crate::ScaledOptimizer) with
    /// [`MasterWeights`](crate::MasterWeights), the average is that of its f32 master.
    pub fn update<M: Module>(&mut self, module: M) -> M {
        self.update_with(module, &ParamTensors::default)
    }

    /// As [`update`](Self::update), with the f32 values of half-precision parameters, asked for if there is one.
    pub(crate) fn update_with<M: Module>(
        &mut self,
        module: M,
        masters: &dyn Fn() -> ParamTensors,
    ) -> M {
        let loaded = self.averages.len();
        let unknown = loaded - self.average(&module, masters, None);
        if std::mem::take(&mut self.loaded) && unknown > 0 {
            log::warn!(
                "{unknown} of the {loaded} averages that were loaded belong to no parameter of this module, and are not used: load \
                 the model's own record too, which gives its parameters their ids back"
            );
        }
        self.updates += 1;
        match self.config.overwrite_frequency {
            Some(frequency) if self.updates.is_multiple_of(frequency.into()) => {
                self.finalize(module)
            }
            _ => module,
        }
    }

    /// Averages the parameters, unless the device says that the step was skipped. How many had an average before.
    fn average<M: Module>(
        &mut self,
        module: &M,
        masters: &dyn Fn() -> ParamTensors,
        found_inf: Option<Tensor<1>>,
    ) -> usize {
        let mut update = Update {
            averages: &mut self.averages,
            masters: LazyCell::new(Box::new(masters)),
            momentum: self.config.momentum,
            found_inf,
            seen: HashSet::new(),
            met: 0,
        };
        module_path::visit(module, &mut update);
        update.met
    }

    /// Whether the next update needs nothing of the host: not the first one, nor one that may overwrite the parameters.
    pub(crate) fn can_update_unheard<M: Module>(&self, module: &M, device: &Device) -> bool {
        let mut known = Known {
            averages: &self.averages,
            device,
            all: self.updates > 0 && !self.loaded && self.config.overwrite_frequency.is_none(),
        };
        if known.all {
            module_path::visit(module, &mut known);
        }
        known.all
    }

    /// As [`update_with`](Self::update_with), if `found_inf` is 0 on the device. It is counted when the host hears of it.
    pub(crate) fn update_unheard<M: Module>(
        &mut self,
        module: &M,
        masters: &dyn Fn() -> ParamTensors,
        found_inf: Tensor<1>,
    ) {
        self.average(module, masters, Some(found_inf));
    }

    /// Counts updates that nobody has waited for.
    pub(crate) fn count(&mut self, updates: u64) {
        self.updates += updates;
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
    /// parameter of another shape than its average; and if no average belongs to a parameter of the module, the log says that.
    /// Does not wait for the device.
    pub fn finalize<M: Module>(&self, module: M) -> M {
        let mut overwrite = Overwrite {
            averages: &self.averages,
            met: 0,
        };
        let module = module_path::map(module, &mut overwrite);
        if overwrite.met == 0 && self.parameters() > 0 {
            log::warn!(
                "none of the {} averages belongs to a parameter of this module, which is not changed. A module that was built again has new \
                 ids: load its own record too, which gives its parameters their ids back",
                self.parameters()
            );
        }
        module
    }

    pub(crate) fn state_to_store(&self) -> EmaState {
        EmaState {
            updates: self.updates,
            averages: self.averages.clone(),
        }
    }

    /// Goes on from a stored state.
    pub(crate) fn restore(&mut self, state: EmaState) {
        self.updates = state.updates;
        self.averages = state.averages;
        self.loaded = true;
    }

    /// Starts afresh.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.config.clone());
    }
}

/// The state of an [`Ema`], as it is stored: this beside the averages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmaState {
    pub(crate) updates: u64,
    #[serde(skip)]
    pub(crate) averages: ParamTensors,
}

struct Update<'a> {
    averages: &'a mut ParamTensors,
    masters: LazyCell<ParamTensors, Box<dyn FnOnce() -> ParamTensors + 'a>>,
    momentum: f64,
    /// What tells on the device that there is no update; it has an average of every parameter.
    found_inf: Option<Tensor<1>>,
    seen: HashSet<ParamId>,
    /// How many parameters had an average before.
    met: usize,
}

impl module_path::Visit for Update<'_> {
    fn parameter<const D: usize>(&mut self, path: &ModulePath, param: &Param<Tensor<D>>) {
        // A parameter shared by two modules is met twice, and averaged once.
        if !param.is_require_grad() || !self.seen.insert(param.id) {
            return;
        }
        let mut value = param.base().inner();
        if is_half(value.dtype())
            && let Some(master) = self.masters.get::<D>(param.id, &value.device())
            && master.shape() == value.shape()
        {
            value = master;
        }
        let known = self.averages.shape(param.id).cloned();
        self.met += usize::from(known.is_some());
        let old = known.filter(|shape| *shape != value.shape());
        if let Some(old) = &old {
            let (path, new) = (path.join(), value.shape());
            log::warn!(
                "`{path}` has shape {new}, but its average has {old}: the average starts again"
            );
        }
        let average = match self.averages.take::<D>(param.id, &value.device()) {
            Some(average) if old.is_none() => {
                let (keep, add) = (self.momentum, 1.0 - self.momentum);
                match &self.found_inf {
                    Some(found) => blend_unless(average, value, keep, add, found.clone()),
                    None => blend(average, value, keep, add),
                }
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

/// Whether all parameters that are averaged have an average here.
struct Known<'a> {
    averages: &'a ParamTensors,
    device: &'a Device,
    all: bool,
}

impl module_path::Visit for Known<'_> {
    fn parameter<const D: usize>(&mut self, _path: &ModulePath, param: &Param<Tensor<D>>) {
        if self.all && param.is_require_grad() {
            let shape = self.averages.shape(param.id);
            self.all = shape.is_some_and(|shape| *shape == param.shape())
                && self.averages.dtype(param.id) == Some(DType::F32)
                && param.device().inner() == *self.device;
        }
    }
}

/// Puts averages in the place of parameters, in the parameters' dtype and on their device. Ids and trainability stay. Does not
/// wait for the device.
struct Overwrite<'a> {
    averages: &'a ParamTensors,
    /// How many parameters have an average.
    met: usize,
}

impl module_path::Map for Overwrite<'_> {
    fn parameter<const D: usize>(
        &mut self,
        path: &ModulePath,
        param: Param<Tensor<D>>,
    ) -> Param<Tensor<D>> {
        let Some(known) = self.averages.shape(param.id) else {
            return param;
        };
        self.met += 1;
        let shape = param.shape();
        if *known != shape {
            let path = path.join();
            log::warn!(
                "`{path}` has shape {shape}, but its average has {known}: the parameter is kept"
            );
            return param;
        }
        let Some(average) = self.averages.get::<D>(param.id, &param.device().inner()) else {
            return param;
        };
        let id = param.id;
        param.map(|tensor| {
            let average = average.cast(tensor.dtype());
            replace_value(tensor, average, id)
        })
    }
}

//! Averages of a model's weights, for evaluation and for the end of the training.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use burn_amp_kernels::blend_unless;
use serde::{Deserialize, Serialize};

use crate::error::{AmpError, in_range};
use crate::step::hook::{
    self, Applied, Hook, IntoHook, Parameter, Proposed, Resolution, State, Verdict,
};
use crate::values::{ParamTensors, replaced, working_dtype};
use crate::{optimizer::ScaledOptimizer, record::AmpRecord, settings, update::ModuleOptim};

settings! {
    /// The settings of averages: Keras's `ema_momentum` and `ema_overwrite_frequency`, and its defaults.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    EmaConfig:
    /// The weight of the average so far; that of the new value is 1 less this. From 0 to 1.
    #[serde(with = "crate::values::number")]
    momentum, with_momentum: f64 = 0.99,
    /// The model's parameters are replaced by their averages after this many updates, and then again. None: only by
    /// [`Ema::finalize`].
    overwrite_frequency, with_overwrite_frequency: Option<u32> = None,
    /// A `Learner` validates with the averages in place of the parameters (feature `train`). Other programs use
    /// [`Ema::module`] for it.
    validation, with_validation: bool = false,
}

impl EmaConfig {
    /// Checks the settings. The average starts with the first update.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the momentum is not between 0 and 1, or the frequency 0.
    pub fn init(&self) -> Result<Ema, AmpError> {
        let (momentum, is_never) = (self.momentum, self.overwrite_frequency == Some(0));
        let inside = (0.0..=1.0).contains(&momentum);
        in_range("momentum", momentum, inside, "between 0 and 1")?;
        in_range("overwrite_frequency", 0.0, !is_never, "at least 1")?;
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
/// skipped; its record holds them. With a `GradScaler`, update one yourself:
///
/// ```
/// use burn::{nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor}};
/// use burn_amp::{EmaConfig, GradScalerConfig, StepOutcome, torch::GradScaler};
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(4, 2).init(&device);
/// let mut optim = SgdConfig::new().init();
/// let mut scaler = GradScaler::new(GradScalerConfig::new())?;
/// let mut ema = EmaConfig::new().with_momentum(0.9).init()?;
///
/// for _ in 0..10 {
///     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
///     let grads = scaler.unscale(scaler.backward(model.forward(input).mean(), &model), &model)?;
///     model = scaler.step(&mut optim, 0.1, model, grads);
///     // Of this very step: `update` gives the joint outcome of all optimizers, and none where each micro-batch moves the scale.
///     if scaler.last_outcome() == Some(StepOutcome::Stepped) {
///         model = ema.update(model);
///     }
///     scaler.update()?;
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
    averages: ParamTensors,
    updates: u64,
    /// Steps of which it is not known yet whether they were applied.
    in_flight: Vec<Resolution>,
    /// True if the averages were loaded, and no module was updated since.
    loaded: bool,
}

impl Ema {
    fn new(config: EmaConfig) -> Self {
        Self {
            config,
            averages: ParamTensors::default(),
            updates: 0,
            in_flight: Vec::new(),
            loaded: false,
        }
    }

    /// The settings.
    pub fn config(&self) -> &EmaConfig {
        &self.config
    }

    /// The number of updates so far: steps that were not skipped.
    pub fn updates(&self) -> u64 {
        let applied = |step: &&Resolution| step.is_applied() == Some(true);
        self.updates + self.in_flight.iter().filter(applied).count() as u64
    }

    /// The number of parameters that are averaged; 0 before the first update.
    pub fn parameters(&self) -> usize {
        self.averages.len()
    }

    /// The average of a parameter, f32 or f64; none before the first update, or if it is not averaged. A handle to the
    /// same memory, unless `param` is on another device: then a copy there. Does not wait.
    pub fn get<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        let average = self.averages.get(&param.id).cloned();
        average?.on(&param.device().inner())
    }

    /// Updates the averages with the parameters after a step. Do not call it after a skipped step.
    ///
    /// Returns the module unchanged, or, at every `overwrite_frequency`-th update, with its parameters replaced by their
    /// averages. Every call counts, also after a step without gradients (Keras ignores such a step), or on a module without
    /// trainable parameters. The average of a parameter whose shape has changed starts again, averages that were loaded for other parameters
    /// are not used, and those of another model are dropped: the log says each. Does not wait for the device.
    ///
    /// A half-precision parameter is averaged as it is, rounded. Inside a [`ScaledOptimizer`](crate::ScaledOptimizer) with
    /// `MasterWeights`, the average is that of its f32 master.
    pub fn update<M: Module>(&mut self, module: M) -> M {
        let hooks = [self as &mut dyn Hook];
        hook::show_applied(hooks, module, &ParamTensors::default, None)
    }

    /// Drops averages that were loaded and are those of another model: later records would have them too.
    fn check_loaded(&mut self, parameters: &[Parameter]) {
        let loaded = self.averages.len();
        let is_known = |parameter: &&Parameter| self.averages.contains_key(&parameter.id);
        let known = parameters.iter().filter(is_known).count();
        if known == 0 {
            self.averages.clear();
        }
        if known < loaded {
            warn!(
                "{} of the {loaded} averages that were loaded belong to no parameter of this module, and are not used: load \
                 the model's own record too, which gives its parameters their ids back",
                loaded - known
            );
        }
    }

    /// Averages parameters, unless the device says that the step was skipped: it has an average of each then.
    fn average(&mut self, parameters: &[Parameter], found_inf: Option<&Tensor<1>>) {
        let (keep, add) = (self.config.momentum, 1.0 - self.config.momentum);
        for parameter in parameters {
            let (path, value) = (&parameter.path, parameter.value.clone());
            let old = self.averages.remove(&parameter.id);
            // One that was frozen since is the model's.
            if !parameter.is_trained {
                continue;
            }
            let old = old.filter(|old| {
                let (old, new) = (old.shape(), value.shape());
                if old != new {
                    warn!(
                        "`{path}` has shape {new}, but its average has {old}: the average starts again"
                    );
                }
                old == new
            });
            let average = match old.and_then(|old| old.live(&value.device())) {
                Some(average) => {
                    let value = value.into_handle();
                    let found = found_inf.cloned();
                    average.map(|average| blend_unless(average, value, keep, add, found))
                }
                // The first time it shares the parameter's memory, which the next step leaves to it.
                None => {
                    let working = working_dtype(value.dtype());
                    value.cast(working)
                }
            };
            self.averages.insert(parameter.id, average.into());
        }
    }

    /// True if the next update needs nothing of the host: not the first one, nor one that may overwrite the parameters.
    fn can_update_on_device(&self, parameters: &[Parameter]) -> bool {
        let mut trained = parameters.iter().filter(|parameter| parameter.is_trained);
        let device = trained.next().map(|first| first.value.device());
        self.updates() > 0
            && !self.loaded
            && self.config.overwrite_frequency.is_none()
            && parameters.iter().all(|parameter| {
                let average = self.averages.get(&parameter.id);
                // The average of one that was frozen goes with a step that is applied.
                if !parameter.is_trained {
                    return average.is_none();
                }
                let of_average = average.map(|average| (average.shape(), average.dtype()));
                of_average == Some((parameter.shape(), DType::F32))
                    && Some(parameter.value.device()) == device
            })
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
        let mut known = 0;
        let average = |id, found: &dyn Fn() -> Parameter| {
            let average = self.averages.get(&id)?;
            known += 1;
            let Parameter { path, value, .. } = found();
            let (shape, old) = (value.shape(), average.shape());
            if old != shape {
                warn!(
                    "`{path}` has shape {shape}, but its average has {old}: the parameter is kept"
                );
                return None;
            }
            Some(average.clone().live(&value.device())?.cast(value.dtype()))
        };
        let module = replaced(module, average);
        if known == 0 && self.parameters() > 0 {
            warn!(
                "none of the {} averages belongs to a parameter of this module, which is not changed. A module that was built again has new \
                 ids: load its own record too, which gives its parameters their ids back",
                self.parameters()
            );
        }
        module
    }

    fn state_to_store(&self) -> State {
        let updates = self.updates();
        State::plain(&EmaState { updates }).with_tensors(self.averages.clone())
    }
}

impl Ema {
    /// The state, to be stored: the averages, and how many updates they have seen. Settings are not stored: the program sets them.
    /// Does not wait for the device; writing the record does.
    ///
    /// The record has handles to the averages, which the next update copies if the record is still there.
    pub fn to_record(&self) -> AmpRecord {
        let mut record = AmpRecord::empty();
        record.hooks.insert(NAME.to_string(), self.state_to_store());
        record
    }

    /// Takes over a stored state: its own, or that of the averages in an optimizer's record. The settings stay. Does not wait for
    /// the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if there are no averages in it, [`AmpError::DamagedRecord`] if they are of no update; the present state
    /// stays as it was.
    pub fn load_record(&mut self, mut record: AmpRecord) -> Result<(), AmpError> {
        let Some(state) = record.hooks.remove(NAME) else {
            return Err(record.foreign("no averages of weights"));
        };
        (self.restore(Some(state))).map_err(|reason| record.refused_state(NAME, &reason))
    }
}

/// Its name among hooks, and in records.
const NAME: &str = "ema";

impl Hook for Ema {
    fn name(&self) -> &str {
        NAME
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        match step.is_on_device() && !self.can_update_on_device(step.parameters()) {
            true => Verdict::Wait,
            false => Verdict::Apply,
        }
    }

    fn applied(&mut self, step: &mut Applied<'_>) {
        // Counts the steps in flight that are over.
        self.updates = self.updates();
        self.in_flight.retain(|step| step.is_applied().is_none());
        let skipped = step.skipped();
        if std::mem::take(&mut self.loaded) {
            self.check_loaded(step.parameters());
        }
        self.average(step.parameters(), skipped.as_ref());
        if skipped.is_some() {
            self.in_flight.push(step.resolution());
            return;
        }
        self.updates += 1;
        let is_due = |frequency: u32| self.updates.is_multiple_of(frequency.into());
        if self.config.overwrite_frequency.is_some_and(is_due) {
            let values = step.parameters().iter().filter_map(|parameter| {
                let average = self.averages.get(&parameter.id)?.clone();
                Some((parameter.id, average.live(&parameter.value.device())?))
            });
            let values: Vec<_> = values.collect();
            for (id, average) in values {
                step.replace_any(id, average);
            }
        }
    }

    fn state(&self) -> Option<State> {
        (self.updates() > 0).then(|| self.state_to_store())
    }

    fn restore(&mut self, state: Option<State>) -> Result<(), String> {
        let mut restored = Self::new(self.config.clone());
        if let Some(state) = state {
            let EmaState { updates } = state.values()?;
            if updates == 0 && !state.tensors.is_empty() {
                return Err("it holds averages of no updates".to_string());
            }
            // The next update counts one more.
            if updates > u64::MAX / 2 {
                return Err(format!("it holds averages of {updates} updates"));
            }
            restored.updates = updates;
            (restored.averages, restored.loaded) = (state.tensors, true);
        }
        *self = restored;
        Ok(())
    }
}

impl IntoHook for EmaConfig {
    fn into_hook(self) -> Result<impl Hook + Clone, AmpError> {
        self.init()
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Averages the weights after every step that was not skipped; see [`Ema`]. The same as [`with_hook`](Self::with_hook).
    ///
    /// A momentum that is not between 0 and 1, or an overwrite frequency of 0, is an error of the first [`try_step`](Self::try_step).
    pub fn with_ema(self, config: EmaConfig) -> Self {
        self.with_hook(config)
    }

    /// The average of the weights; none without [`with_ema`](Self::with_ema).
    pub fn ema(&self) -> Option<&Ema> {
        self.hook()
    }

    /// Ends the training: replaces the parameters by their averages, in the parameters' dtypes, as Keras's
    /// `finalize_variable_values`; see [`Ema::finalize`]. Returns the module unchanged without [`with_ema`](Self::with_ema).
    /// Does not wait for the device.
    pub fn finalize<M: Module>(&self, module: M) -> M {
        match self.ema() {
            Some(ema) => ema.finalize(module),
            None => module,
        }
    }
}

impl AmpRecord {
    /// The number of parameters whose averages are kept; 0 without averaging.
    pub fn averages(&self) -> usize {
        let averages = self.hooks.get(NAME);
        averages.map_or(0, |state| state.tensors.len())
    }

    /// The record without averages: the run starts them again, or has none.
    pub fn without_averages(self) -> Self {
        self.without_hook(NAME)
    }
}

/// The state of an [`Ema`], as it is stored beside the averages.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EmaState {
    updates: u64,
}

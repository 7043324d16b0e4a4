use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamGroup};
use burn::optim::{GradientsParams, ModuleOptimizer, MultiGradientsParams, OptimizerRecord};
use burn::tensor::{Bytes, Tensor};

use std::{any::type_name, path::Path, sync::Arc};

mod burn_record;
mod device;
mod host;
pub(crate) mod lr_scheduler;
pub(crate) mod pipelined;
mod recorded;

use device::Flight;
pub use recorded::{InspectedStep, Recorder, Stage, refused};

use crate::error::{AmpError, StepError, or_panic};
use crate::gradients::{ScaledGradients, StepGradients, UnscaledGradients};
use crate::gradients::{failed_step, sum_of_devices};
use crate::peers::{Peers, Ranks, described};
use crate::record::{AmpRecord, OptimizerState, checksum};
use crate::scaler::accumulation::{AccumulationConfig, AccumulationWindow};
use crate::step::hook::{Hook, IntoHook};
use crate::{
    gradients::clip::GradientClip, gradients::entries::Entries, scale::account::Call,
    scale::loss_scale::GradScalerConfig, scaler::Scaler, step::options::StepOptions,
    update::Update, update::module_optim::ModuleOptim,
};

/// An optimizer with loss scaling: [`step`](Self::step) unscales the gradients, tests them, steps the inner
/// optimizer or skips the step, and moves the loss scale.
///
/// Wraps anything that implements [`ModuleOptim`]: Burn's `ModuleOptimizer`, hence every optimizer with
/// its groups and its clipping (which sees unscaled gradients), a `&mut` to one, or a type of your own. The
/// counterpart of Keras's `LossScaleOptimizer`.
///
/// [`with_accumulation`](Self::with_accumulation), [`with_clipping`](Self::with_clipping), [`with_ema`](Self::with_ema) and
/// [`with_hook`](Self::with_hook) add to a step. The order is: accumulate, unscale, test, judge
/// (the hooks), clip, update the scale, step or skip, show the parameters to the hooks.
///
/// These methods wait for the steps that are [in flight](Self::step), and do not fail. A setting that is out of its range, here or in a fused
/// optimizer inside, is an error of every step, which changes nothing. Calling the method again with a valid value clears the error, except for
/// thresholds of groups and names of hooks: build the optimizer again.
///
/// Cloning waits for the steps that are [in flight](Self::step), and the clone has the state after them. Both share
/// the loss scale of a [`MixedPrecision`](crate::MixedPrecision). Dropping an optimizer waits for its steps in flight, which count.
pub struct ScaledOptimizer<O = ModuleOptimizer> {
    pub(crate) optim: O,
    pub(crate) scaler: Scaler,
    pub(crate) options: StepOptions,
    /// A loaded state, until the first step has compared it with the module.
    pub(crate) loaded: Option<OptimizerState>,
    flight: Flight,
    pub(crate) own_optimize: bool,
}

/// An optimizer without loss scaling: its gradients are not tested.
impl<O: ModuleOptim> From<O> for ScaledOptimizer<O> {
    fn from(optim: O) -> Self {
        let config = GradScalerConfig::new().with_enabled(false);
        let schedule = config.schedule().expect("the defaults are valid");
        Self::new(optim, Scaler::of_schedule(schedule))
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Wraps an optimizer. `scaler` is a [`&MixedPrecision`](crate::MixedPrecision), whose loss scale it adjusts, or a `GradScaler`,
    /// for half-precision parameters.
    pub fn new(optim: O, scaler: impl Into<Scaler>) -> Self {
        let scaler = scaler.into();
        scaler.expect(false);
        Self {
            optim,
            scaler,
            options: StepOptions::default(),
            loaded: None,
            flight: Flight::default(),
            own_optimize: false,
        }
    }

    /// Makes `step` take micro-batches: every n-th call steps, with their mean or their sum.
    ///
    /// Takes a number of micro-batches or an [`AccumulationConfig`]. A window that was open is dropped.
    ///
    /// ```
    /// use burn::optim::SgdConfig;
    /// use burn_amp::{AccumulationConfig, GradScalerConfig, ScaledOptimizer, torch::GradScaler};
    ///
    /// let optim = ScaledOptimizer::new(SgdConfig::new().init(), GradScaler::new(GradScalerConfig::new())?);
    /// let optim = optim.with_accumulation(4);
    /// let optim = optim.with_accumulation(AccumulationConfig::new(4).with_skip_micro_batch(true));
    /// assert!(optim.window().unwrap().is_empty());
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// 0 micro-batches are an error of the first [`try_step`](Self::try_step).
    pub fn with_accumulation(mut self, config: impl Into<AccumulationConfig>) -> Self {
        self.resolve();
        self.drop_window();
        let window = config.into().init();
        if let Some(window) = self.options.replaced("with_accumulation", window) {
            self.options.window = Some(window);
        }
        self
    }

    /// Clips gradients after they were unscaled and tested; see [`UnscaledGradients::clip`].
    ///
    /// Clipping that is configured on the inner optimizer comes after it. In a fused optimizer that has none, clipping is
    /// fused into the update. Its coefficients are f32 numbers then, within 2^-21 of what f64 gives. f64 gradients are multiplied before,
    /// by f64 coefficients.
    ///
    /// A threshold that is zero, negative or NaN is an error of the first [`try_step`](Self::try_step).
    pub fn with_clipping(mut self, clip: GradientClip) -> Self {
        // Those that are under way were clipped by the rules of before.
        self.resolve();
        let checked = clip.check("clip");
        if (self.options.replaced("with_clipping", checked)).is_some() {
            let rules = &mut self.options.clip.0;
            rules.retain(|(group, _)| group.is_some());
            rules.insert(0, (None, clip));
        }
        self
    }

    /// Clips the gradients of a group by another rule; the last group that matches counts. A global norm is that of its
    /// group alone, and [`with_clipping`](Self::with_clipping) is for the parameters that match no group.
    ///
    /// ```
    /// use burn::{module::ParamGroup, optim::SgdConfig};
    /// use burn_amp::{GradientClip, MixedPrecision, ScaledOptimizer};
    ///
    /// // The head's values are limited; all other gradients are one vector.
    /// let optim = ScaledOptimizer::new(SgdConfig::new().init(), &MixedPrecision::f16())
    ///     .with_clipping(GradientClip::GlobalNorm(1.0))
    ///     .with_group_clipping(ParamGroup::from_predicate("head"), GradientClip::Value(0.1));
    /// # let _ = optim;
    /// ```
    ///
    /// A threshold that is zero, negative or NaN is an error of the first [`try_step`](Self::try_step).
    pub fn with_group_clipping(mut self, group: ParamGroup, clip: GradientClip) -> Self {
        self.resolve();
        let checked = clip.check("clip_groups");
        if (self.options.added("with_group_clipping", checked)).is_some() {
            self.options.clip.0.push((Some(group), clip));
        }
        self
    }

    /// Adds a [hook](crate::step::hook::Hook) to the steps, in the place of one of the same type and name. Takes the hook, or its settings.
    ///
    /// The first [`try_step`](Self::try_step) returns an error for a setting that is out of its range, for a name with other characters than letters,
    /// digits, `_` and `-`, and for the name of a hook of another type (averages have `ema`).
    pub fn with_hook<H: IntoHook>(mut self, hook: H) -> Self {
        self.resolve();
        if let Some(hook) = (self.options).replaced(type_name::<H>(), hook.into_hook()) {
            let added = self.options.hooks.add(hook);
            self.options.added("with_hook", added);
        }
        self
    }

    /// Has several ranks decide on each step together: processes that train copies of one model on parts of a batch, each with an optimizer and a
    /// [`MixedPrecision`](crate::MixedPrecision) of its own.
    ///
    /// Sum the gradients over the ranks before each step, so that all step with the same. In the step each rank votes on what it has found, once, by
    /// [`Peers::agree`]. So all skip the same steps, for the same cause: a loss that is not finite on one rank lowers the loss scale of none. The loss
    /// scale, counters, hooks, dropped micro-batches, limits and the factors of regions are the same on all ranks, bit for bit. Where a step fails on one
    /// rank, it ends on all with an error.
    ///
    /// Before the first step, and before that after the first update, the ranks compare their settings, the state of loss scale and optimizer, and
    /// names, shapes and values of the parameters, which reads them all; in each step their loss scales, and how often they have stepped. Make the same
    /// calls on all ranks, also those that change a setting, or discard gradients. Each step waits, with fused optimizers too, and none can be captured.
    /// When it is dropped, with all its clones, the others are told that this rank has ended.
    ///
    /// [`calibrate`](Self::calibrate) sets the lowest scale of all ranks; [`MixedPrecision::calibrate`](crate::MixedPrecision::calibrate) that of one.
    pub fn with_peers(mut self, peers: impl Peers) -> Self {
        self.resolve();
        self.scaler.ranks = Some(Arc::new(Ranks::new(peers)));
        self
    }

    /// Says what must be the same on all ranks, a line for each.
    fn about<M: Module>(&self, module: &M) -> String {
        let state = self.optim.to_record().and_then(checksum);
        let mut lines = vec![
            format!("burn-amp {}", env!("CARGO_PKG_VERSION")),
            self.options.about(),
            format!(
                "the loss scale {}",
                serde_json::json!(self.scaler.schedule())
            ),
            // One that stores no state is known by its updates alone.
            format!(
                "the optimizer {} {}",
                type_name::<O>(),
                state.unwrap_or_default()
            ),
        ];
        lines.extend(described(module));
        lines.join("\n")
    }

    /// Begins a call on all ranks: compares what must be the same, where that is due. Returns the votes so far.
    fn begin<M: Module>(&self, ranks: &Ranks, module: &M) -> Result<u64, AmpError> {
        let updates = self.scaler.counters().stepped();
        ranks.begin(updates, || self.about(module))
    }

    /// Says to the other ranks that a call fails here, unless this one has voted in it, after so many votes.
    fn fail(&self, votes: Option<u64>, error: &AmpError) {
        if let (Some(ranks), Some(votes)) = (&self.scaler.ranks, votes) {
            ranks.fail(votes, error);
        }
    }

    /// Checks the settings of this and of the inner optimizer, as each step does.
    ///
    /// # Errors
    ///
    /// The first setting that was refused; see [`try_step`](Self::try_step).
    pub fn check_settings(&self) -> Result<(), AmpError> {
        self.optim.check_settings()?;
        // The first, unless another setting has taken its place.
        match self.options.refused.first() {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// The first hook of a type; none if there is none.
    pub fn hook<H: Hook>(&self) -> Option<&H> {
        self.options.hooks.get()
    }

    /// Gives the hooks the loss of the next call of [`step`](Self::step), as the program has read it.
    ///
    /// The loss is computed outside of half precision, and this crate does not see it; reading the tensor here would be one more
    /// wait. For an accumulation window, hooks see the mean of the losses that were set. A step without a loss is judged by its
    /// norm alone, as all steps in a `Learner` are.
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
    /// # use burn_amp::{MixedPrecision, ScaledOptimizer, adaptive::Guard};
    /// # let device = Device::flex().autodiff();
    /// # let amp = MixedPrecision::f16();
    /// # let mut model = amp.attach(LinearConfig::new(4, 2).init(&device));
    /// let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp).with_hook(Guard::skip_step());
    /// let loss = amp.autocast(Tensor::<2>::ones([8, 4], &device), |x| model.forward(x)).square().mean();
    /// optim.set_loss(loss.clone().into_scalar::<f32>().into()); // read, as for a log
    /// let grads = GradientsParams::from_grads(loss.backward(), &model);
    /// model = optim.step(0.1, model, grads);
    /// # let _ = model;
    /// ```
    pub fn set_loss(&mut self, loss: f64) {
        self.options.loss = Some(loss);
    }

    /// Says, in a `Learner` (feature `train`), that the model has a `TrainStep::optimize` of its own, to clip its weights for example, which
    /// every step that is not skipped is to call.
    ///
    /// Without this, a fused optimizer steps all parameters by itself in one pass, and the model's `optimize` is not called:
    /// Rust does not say whether there is one. With it, parameters are stepped one by one, and each step waits for the device, as with
    /// Burn's optimizers, which call the model's `optimize` in any case. A `PipelinedOptimizer` with it is
    /// refused. Changes nothing outside of a `Learner`.
    ///
    /// ```
    /// use burn::optim::AdamConfig;
    /// use burn_amp::{optim::FusedAdam, MixedPrecision, ScaledOptimizer};
    ///
    /// let amp = MixedPrecision::f16();
    /// let optim = FusedAdam::new(AdamConfig::new());
    /// let optim = ScaledOptimizer::new(optim, &amp).with_own_optimize(); // for `amp.learner(model, optim, lr)`
    /// # let _ = optim;
    /// ```
    pub fn with_own_optimize(mut self) -> Self {
        self.own_optimize = true;
        self
    }

    /// Scales the loss and collects the gradients of `module`; see [`Scaler::backward`](crate::Scaler::backward).
    ///
    /// Gradients that were unscaled and dropped before this call update the loss scale now, before it is used.
    ///
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`].
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        let scale = self.scaler.resolved_loss_factor();
        self.scaler.backward_at(scale, loss, module)
    }

    /// Unscales gradients ahead of [`step`](Self::step), to look at them or to clip them.
    ///
    /// Waits for the device once; `step` then does not wait again. See `GradScaler::unscale`. Gradients that are dropped after it count as
    /// discarded ones at the next call of this, of `step`, `flush` or `discard`. Several ranks vote on what was found.
    ///
    /// # Errors
    ///
    /// As `GradScaler::unscale`, as `GradScaler::discard` for gradients that were dropped before, and [`AmpError::InvalidValue`] for a
    /// setting that is out of its range.
    pub fn unscale<M: Module>(
        &mut self,
        grads: ScaledGradients,
        module: &M,
    ) -> Result<UnscaledGradients, AmpError> {
        let ranks = self.scaler.ranks.as_ref();
        let votes = ranks.map(|ranks| self.begin(ranks, module)).transpose()?;
        let ready = self.check_settings().and_then(|()| self.synchronize());
        let ready = ready.and_then(|()| self.scaler.resolve_dropped());
        let unscaled = ready.and_then(|()| self.scaler.unscale(grads, module));
        unscaled.inspect_err(|error| self.fail(votes, error))
    }

    /// One training step, called as [`ModuleOptimizer::step`](burn::optim::ModuleOptimizer::step) is.
    ///
    /// `grads` are Burn's own, unscaled as they come from [`autocast`](crate::MixedPrecision::autocast), those of a loss that was
    /// scaled by hand ([`ScaledGradients`]), or [`UnscaledGradients`]. If they overflow, the step is skipped: parameters and
    /// optimizer state stay as they are, bit for bit, and the loss scale backs off. Running statistics (BatchNorm's) that the forward
    /// pass has made infinite or NaN are set back to those of the last good step; finite ones stay.
    ///
    /// Waits for the device once, to read whether the gradients are finite, and once more on a skip, to find its cause. With a fused
    /// optimizer it does not wait, except in [the cases that the book lists](https://docs.rs/crate/burn-amp/latest/source/docs/src/fused.md):
    /// outcomes arrive at most 17 steps later, and an error comes from the next call that can return it. [`synchronize`](Self::synchronize)
    /// waits for them.
    ///
    /// With [`with_accumulation`](Self::with_accumulation) it takes a micro-batch, and returns the module unchanged until the
    /// window is full; [`window`](Self::window) is empty after a step.
    ///
    /// # Panics
    ///
    /// Where [`try_step`](Self::try_step) returns an error, with its message.
    #[track_caller]
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> M {
        match step_by(self, lr.into(), module, grads.into(), O::update) {
            Ok(module) => module,
            Err(error) => panic!("{error}"),
        }
    }

    /// Steps as [`step`](Self::step) does, for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// The error has the unchanged module. [`AmpError::LossScaleExhausted`] if the gradients overflow after `max_consecutive_skips`
    /// skips in a row, or where the scale cannot go lower if `raise_error_at_min_scale` is set, [`AmpError::HalfPrecisionParameter`] if a parameter is in half precision and the inner optimizer
    /// cannot combine it with an f32 gradient; see `GradScaler::try_step`. [`AmpError::UnsupportedDType`] if a gradient's
    /// device cannot compute in the gradient's dtype. [`AmpError::GradientShape`] if a gradient does not have its parameter's shape,
    /// [`AmpError::InvalidValue`] for a learning rate that is NaN, or infinite as an f32, and for a setting of this or of a fused optimizer that is out of
    /// its range. [`AmpError::ForeignRecord`] if an open window belongs
    /// to another model, or a state that was loaded to parameters of other shapes. [`AmpError::AlwaysGuarded`] if hooks reject too many steps in a row,
    /// [`AmpError::LossNotFinite`] if the model's output or the gradient of the loss is infinite or NaN too many times in a row,
    /// [`AmpError::UnknownCause`] if gradients are, of which scopes gave finite ones, and [`AmpError::TwoPrecisions`]
    /// if gradients overflow as often in the scopes of another handle. [`AmpError::UnfrozenBase`] if the base of a low-rank adapter has
    /// gradients. [`AmpError::InvalidValue`] for a hook's factor outside (0, 1].
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> Result<M, StepError<M>> {
        step_by(self, lr.into(), module, grads.into(), O::update)
    }

    /// Steps with the micro-batches of a window that is not full, at the end of an epoch; see `GradScaler::flush`.
    ///
    /// Returns the module unchanged if the window is empty, or there is no accumulation. Waits for the device once, if there
    /// is something to step with.
    ///
    /// # Panics
    ///
    /// Where [`try_flush`](Self::try_flush) returns an error, with its message.
    #[track_caller]
    pub fn flush<M: Module>(&mut self, lr: impl Into<ModuleLearningRate>, module: M) -> M {
        or_panic(self.try_flush(lr, module))
    }

    /// Steps as [`flush`](Self::flush) does, for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step), and [`AmpError::ForeignRecord`] if the window belongs to another model; it stays as it
    /// was then.
    pub fn try_flush<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
    ) -> Result<M, StepError<M>> {
        match self.check_settings().and_then(|()| self.synchronize()) {
            Ok(()) => self.step_on_host(lr.into(), module, None, O::update),
            Err(error) => Err(self.refused(module, error)),
        }
    }

    /// A call that was refused before it began.
    fn refused<M: Module>(&self, module: M, error: AmpError) -> StepError<M> {
        self.scaler.enter(Call::default());
        let votes = self.scaler.ranks.as_ref().map(|ranks| ranks.votes());
        self.fail(votes, &error);
        failed_step(module, error)
    }

    /// Throws away the micro-batches of a window that is not full. Does nothing without accumulation.
    pub fn drop_window(&mut self) {
        if let Some(window) = &mut self.options.window {
            window.clear();
            self.scaler.live.regions.lock().forget_window();
        }
    }

    /// Throws gradients away without a step, in place of [`step`](Self::step), and counts that.
    ///
    /// Parameters, optimizer, averages and an open window stay as they are: a micro-batch that is discarded does not count.
    /// If the gradients were unscaled, they move the loss scale at once; see `GradScaler::discard`. Finite micro-batches do not
    /// if the scale stays the same for a whole window (without [`AccumulationConfig::skip_micro_batch`]).
    /// Gradients that are dropped without this call, and were not unscaled, are taken for a part of the next step: if that is skipped, they may be
    /// found to be the cause.
    ///
    /// # Errors
    ///
    /// As `GradScaler::discard`, and [`AmpError::InvalidValue`] for a setting that is out of its range.
    pub fn discard(&mut self, grads: impl Into<StepGradients>) -> Result<(), AmpError> {
        self.check_settings()?;
        self.synchronize()?;
        self.discard_on_host(grads.into())
    }

    /// Steps as [`step`](Self::step) does, with gradients that several devices computed at the present loss scale.
    ///
    /// They are summed in f32 before they are unscaled, on the devices on which Burn's
    /// `ModuleOptimizer::step_multi` sums them; an overflow on one device skips the step.
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step).
    pub fn step_multi<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: MultiGradientsParams,
    ) -> Result<M, StepError<M>> {
        if let Err(error) = self.check_settings() {
            return Err(self.refused(module, error));
        }
        for (of_device, _) in &grads.grads {
            if let Err(error) = Entries::of(of_device, &module) {
                return Err(self.refused(module, error));
            }
        }
        let grads = sum_of_devices(grads, &module);
        self.try_step(lr, module, grads)
    }

    /// The scaler: loss scale, counters, last outcome.
    pub fn scaler(&self) -> &Scaler {
        &self.scaler
    }

    /// The scaler, to change its settings. Waits for the steps in flight.
    pub fn scaler_mut(&mut self) -> &mut Scaler {
        self.resolve();
        &mut self.scaler
    }

    /// The window that accumulates micro-batches; none without [`with_accumulation`](Self::with_accumulation).
    pub fn window(&self) -> Option<&AccumulationWindow> {
        self.options.window.as_ref()
    }

    /// The rule by which gradients of parameters that match no group are clipped; none without [`with_clipping`](Self::with_clipping).
    pub fn clipping(&self) -> Option<&GradientClip> {
        let (group, clip) = self.options.clip.0.first()?;
        group.is_none().then_some(clip)
    }

    /// The inner optimizer. Waits for the steps in flight, which its state has counted as taken.
    pub fn optimizer(&self) -> &O {
        self.scaler.live.resolve(true);
        &self.optim
    }

    /// The inner optimizer, to change its settings. Waits for the steps in flight.
    pub fn optimizer_mut(&mut self) -> &mut O {
        self.resolve();
        &mut self.optim
    }

    /// The inner optimizer with its state, to use without scaling. An open window and averages are dropped. Waits for
    /// the steps in flight.
    pub fn into_inner(mut self) -> O {
        self.resolve();
        self.optim
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// The state of optimizer and scaler, of an open window and of hooks (averages are one), to be stored. Waits for the device, and for the
    /// steps in flight.
    ///
    /// A state that cannot be stored is an error of the record's `save`, `into_bytes` and `into_optimizer`.
    pub fn to_record(&mut self) -> AmpRecord {
        let live = &self.scaler.live;
        live.resolve(true);
        if live.is_shared(None) && live.is_in_iteration() {
            warn!(
                "a record was taken between the steps of two optimizers on one loss scale, and does not hold what this iteration has shown so far: \
                 save after all of them have stepped"
            );
        }
        (self.options.record_with(&self.scaler)).with_optimizer(&self.optim)
    }

    /// Takes over a stored state, which replaces all of the present one. An open window is dropped. With the record of a plain
    /// optimizer the scaler starts fresh. A hook of which the record has no state starts again, and so does one that was stored with other settings, if
    /// it cannot go on with them. The log warns of it, and of a state without tensors whose hook is not here.
    ///
    /// The settings stay as they are here: see `GradScaler::load_record`.
    ///
    /// Unlike Burn's `load_record`, which silently starts again, it refuses the state of another optimizer. It cannot see state that Burn's optimizers
    /// keep but do not use: momentum in an `Sgd` without momentum, and AMSGrad's maximum in an `Adam` without AMSGrad. Fused optimizers refuse such state. Burn builds the tensors on
    /// `Device::default()`, the first GPU backend that was *compiled in*: the environment variable `BURN_DEVICE` names another.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`], also for an open window where there is no accumulation, and for tensors of a hook (averages) and master
    /// weights that this optimizer does not have. [`AmpError::DamagedRecord`], as `GradScaler::load_record`, and for a state that its hook refuses. [`AmpError::InvalidValue`] for a
    /// setting that is out of its range. Optimizer, scaler, window and hooks stay as they were.
    pub fn load_record(&mut self, mut record: AmpRecord) -> Result<(), AmpError> {
        self.check_settings()?;
        self.resolve();
        let state = record.optimizer_state()?;
        if let Some(scaler) = &record.scaler {
            scaler.check(&self.scaler.live, &record.origin)?;
        }
        if let Some(reason) = self.misfit(&record) {
            return Err(record.misfit(reason));
        }
        let hooks = self.options.hooks.restored(&mut record)?;
        record.check_left_hooks()?;
        record.drop_rest();
        let (scaler, window) = (record.scaler.take(), record.window.take());
        let origin = record.origin.clone();
        let loaded = self.optim.load_record(record.into_optimizer()?);
        loaded.map_err(|error| match error {
            AmpError::ForeignRecord { reason, .. } => AmpError::foreign(&origin, reason),
            other => other,
        })?;
        self.loaded = Some(state);
        if let Some(ranks) = &self.scaler.ranks {
            ranks.restart();
        }
        if let Some(here) = &mut self.options.window {
            here.state = window.unwrap_or_default();
        }
        self.options.hooks = hooks;
        match scaler {
            Some(state) => self.scaler.restore(&state, &origin)?,
            None => {
                self.scaler.reset();
                warn!(
                    "{origin} is the record of an optimizer without loss scaling: the scaler starts fresh, at loss scale {}",
                    self.scaler.loss_scale()
                );
            }
        }
        Ok(())
    }

    /// Says why this cannot go on with a window or with averages, if it cannot.
    fn misfit(&self, record: &AmpRecord) -> Option<String> {
        if record.masters() > 0 {
            let reason = "it holds master weights that the model does not have: load it into a `PipelinedOptimizer`, or drop them with \
                          `AmpRecord::without_masters`";
            return Some(reason.to_string());
        }
        let state = record.window.as_ref().filter(|state| state.len > 0)?;
        let Some(window) = &self.options.window else {
            return Some(format!(
                "it holds a window of {} accumulated micro-batches, but there is no accumulation here: use \
                 `with_accumulation`, or drop them with `AmpRecord::without_window`",
                state.len
            ));
        };
        let reason = window.misfit(state)?;
        Some(format!(
            "{reason}; drop it with `AmpRecord::without_window`"
        ))
    }

    /// Writes the state to a file: `to_record().save(path)`.
    ///
    /// # Errors
    ///
    /// As [`AmpRecord::save`].
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.to_record().save(path)
    }

    /// Takes over the state in a file: [`AmpRecord::load`], then [`load_record`](Self::load_record).
    ///
    /// # Errors
    ///
    /// Those of both; the present state stays as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.load_record(AmpRecord::load(path)?)
    }

    /// The state as a burnpack in memory: `to_record().into_bytes()`.
    ///
    /// # Errors
    ///
    /// As [`AmpRecord::into_bytes`].
    pub fn into_bytes(&mut self) -> Result<Bytes, AmpError> {
        self.to_record().into_bytes()
    }

    /// Takes over the state in a burnpack in memory: [`AmpRecord::from_bytes`], then
    /// [`load_record`](Self::load_record).
    ///
    /// # Errors
    ///
    /// Those of both; the present state stays as it was.
    pub fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        self.load_record(AmpRecord::from_bytes(bytes)?)
    }
}

/// Steps as [`ScaledOptimizer::try_step`] does, with another function that updates the module.
pub fn step_by<O: ModuleOptim, M: Module>(
    optim: &mut ScaledOptimizer<O>,
    lr: ModuleLearningRate,
    module: M,
    grads: StepGradients,
    update: impl FnOnce(&mut O, Update, M, GradientsParams) -> M,
) -> Result<M, StepError<M>> {
    let begun = match optim.check_settings() {
        Ok(()) if optim.optim.takes().decision => optim.begin_on_device(&lr, &module, &grads),
        checked => {
            // Another optimizer of the same scale may have steps in flight.
            optim.scaler.live.resolve(true);
            checked.map(|()| None)
        }
    };
    match begun {
        Ok(None) => optim.step_on_host(lr, module, Some(grads), update),
        Ok(Some(start)) => Ok(optim.step_on_device(start, lr, module, grads.into_params(), update)),
        Err(error) => Err(optim.refused(module, error)),
    }
}

/// A clone continues from here on its own. Waits for the steps in flight.
impl<O: Clone> Clone for ScaledOptimizer<O> {
    fn clone(&self) -> Self {
        self.scaler.live.resolve(true);
        Self {
            optim: self.optim.clone(),
            scaler: self.scaler.clone(),
            options: self.options.clone(),
            loaded: self.loaded.clone(),
            flight: Flight::default(),
            own_optimize: self.own_optimize,
        }
    }
}

/// Leaves out the inner optimizer: Burn's own does not print.
impl<O> std::fmt::Debug for ScaledOptimizer<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaledOptimizer")
            .field("scaler", &self.scaler)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ModuleOptim for ModuleOptimizer {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        ModuleOptimizer::step(self, lr, module, grads)
    }

    fn update<M: Module>(&mut self, update: Update, module: M, grads: GradientsParams) -> M {
        ModuleOptimizer::step(self, update.lr, module, grads)
    }

    fn to_record(&self) -> Result<OptimizerRecord, AmpError> {
        Ok(ModuleOptimizer::to_record(self))
    }

    fn check_record(&self, record: OptimizerRecord) -> Result<(), AmpError> {
        burn_record::loaded(self.clone(), record).map(drop)
    }

    fn load_record(&mut self, record: OptimizerRecord) -> Result<(), AmpError> {
        *self = burn_record::loaded(self.clone(), record)?;
        Ok(())
    }
}

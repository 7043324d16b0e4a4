use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamId};
use burn_amp_core::internal::torch::{
    Joint, check_accepted, failed, fill, into_tested, spares_scale, unscale,
};
use burn_amp_core::internal::{
    Entries, Followed, StepGradients, enter_call, keep_statistics, or_panic, repair_statistics,
};
use burn_amp_core::{
    AccumulationWindow, AmpError, AmpRecord, GradScalerConfig, LossScale, MixedPrecision,
    ModuleOptim, ScaledGradients, Scaler, StepError, StepOutcome, UnscaledGradients,
};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

/// Scales losses, unscales and tests gradients, skips steps that overflow, and moves the loss scale.
///
/// The counterpart of PyTorch's `torch.amp.GradScaler` (same names, defaults and arithmetic), after
/// "Mixed Precision Training" (Micikevicius et al., 2018). Built by
/// [`GradScaler::new`]. Settings, counters and losses are those of the [`Scaler`] that it is made of.
///
/// A value, as [`Scaler`] is. It waits for the device where it tests
/// gradients, once: in [`unscale`](Self::unscale), or in [`accumulate`](Self::accumulate) and [`flush`](Self::flush).
#[derive(Clone, Debug)]
pub struct GradScaler {
    scaler: Scaler,
    iteration: Joint,
    /// The optimizers that have stepped each parameter in it: clones of a network have parameters of the same ids.
    stepped: HashMap<ParamId, Vec<usize>>,
}

/// The key of gradients that are observed: they belong to no optimizer.
const OBSERVED: usize = 0;

impl From<Scaler> for GradScaler {
    fn from(scaler: Scaler) -> Self {
        Self {
            scaler,
            iteration: Joint::default(),
            stepped: HashMap::new(),
        }
    }
}

/// The scaler of an optimizer, whose steps are iterations by themselves: what an iteration has shown so far is gone.
impl From<GradScaler> for Scaler {
    fn from(scaler: GradScaler) -> Self {
        scaler.scaler
    }
}

/// A scaler that moves the loss scale of this handle: that of an optimizer whose gradients its scopes have scaled and unscaled.
impl From<&MixedPrecision> for GradScaler {
    fn from(amp: &MixedPrecision) -> Self {
        Scaler::from(amp).into()
    }
}

/// The steps of this scaler, wherever clones of it step.
impl From<&GradScaler> for Followed {
    fn from(scaler: &GradScaler) -> Self {
        Self::from(&scaler.scaler)
    }
}

impl Deref for GradScaler {
    type Target = Scaler;

    fn deref(&self) -> &Scaler {
        &self.scaler
    }
}

impl DerefMut for GradScaler {
    fn deref_mut(&mut self) -> &mut Scaler {
        &mut self.scaler
    }
}

/// One iteration: unscale, step or skip, update.
impl GradScaler {
    /// Builds a scaler with these settings.
    ///
    /// # Errors
    ///
    /// As [`GradScalerConfig::schedule`].
    pub fn new(config: GradScalerConfig) -> Result<Self, AmpError> {
        Self::from_schedule(config.schedule()?)
    }

    /// Builds a scaler that moves this loss scale, by its settings and its rule.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if it was stored with a rule of your own and was not given that again.
    pub fn from_schedule(schedule: LossScale) -> Result<Self, AmpError> {
        Scaler::try_from(schedule).map(Self::from)
    }

    /// Divides gradients by the loss scale and looks for values that are not finite.
    ///
    /// Takes what [`backward`](Scaler::backward) or [`scaled`](Scaler::scaled) gives. Gradients come out in f32 for f16, bf16
    /// and f32 parameters and in f64 for f64 ones ([`parameter_dtype_gradients`](GradScalerConfig::parameter_dtype_gradients) can change that). The inverse of the
    /// scale is taken in f64 and rounded to f32 once, as in PyTorch; with a scale that is a power of two the result
    /// is that of an unscaled f32 step, bit for bit, except where it is subnormal.
    ///
    /// Gradients of parameters that are not in `module` are dropped, as Burn's optimizers ignore them.
    /// Disabled: gradients pass as they are, and [`status`](UnscaledGradients::status) measures them where it is asked.
    ///
    /// Waits for the device, unless disabled: one small transfer for all gradients (one for each device, if there are several).
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype, [`AmpError::GradientShape`] if
    /// a gradient does not have its parameter's shape.
    pub fn unscale<M: Module>(
        &self,
        grads: ScaledGradients,
        module: &M,
    ) -> Result<UnscaledGradients, AmpError> {
        unscale(&self.scaler, grads, module)
    }

    /// Steps the optimizer, or skips the step if the gradients overflow, and records which it was.
    ///
    /// On a skipped step the module is returned unchanged and the optimizer is not called. Without any
    /// gradients (an empty module, frozen parameters, a loss that reached none of them) the optimizer is called
    /// with none and the step is counted, but the loss scale stays; the first such step warns. Call
    /// [`update`](Self::update) once after all steps of the iteration. [`last_outcome`](Scaler::last_outcome) returns what this
    /// call has done.
    ///
    /// Waits for the device on a skipped step, where running statistics that are not finite are set back to those of the last good step, and where
    /// all gradients are zero, to warn.
    ///
    /// # Panics
    ///
    /// Where [`try_step`](Self::try_step) returns an error, with its message.
    #[track_caller]
    pub fn step<O: ModuleOptim, M: Module>(
        &mut self,
        optim: &mut O,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: UnscaledGradients,
    ) -> M {
        or_panic(self.try_step(optim, lr, module, grads))
    }

    /// Steps as [`step`](Self::step) does, for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// The error has the unchanged module. [`AmpError::LossScaleExhausted`] if the gradients overflow after
    /// `max_consecutive_skips` skips in a row, or where the scale cannot go lower if
    /// [`raise_error_at_min_scale`](GradScalerConfig::raise_error_at_min_scale) is set; the step is counted as skipped. Of a
    /// window whose micro-batches were tested one by one
    /// ([`skip_micro_batch`](burn_amp_core::AccumulationConfig::skip_micro_batch)) only the former: its sum overflows by itself.
    /// [`AmpError::HalfPrecisionParameter`] if the optimizer cannot combine a parameter with its gradient, and
    /// [`AmpError::UpdateMissing`] if these parameters were stepped already, [`AmpError::GradientShape`] if a gradient does not have
    /// its parameter's shape, [`AmpError::InvalidValue`] for a learning rate that is NaN, or infinite as an f32, and for a setting of a fused optimizer; nothing
    /// is counted then. [`AmpError::LossNotFinite`], [`AmpError::UnknownCause`] and [`AmpError::TwoPrecisions`] for such a cause too many times in a row. Neither
    /// parameters, optimizer state nor loss scale change on any of them.
    pub fn try_step<O: ModuleOptim, M: Module>(
        &mut self,
        optim: &mut O,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: UnscaledGradients,
    ) -> Result<M, StepError<M>> {
        let lr = lr.into();
        match self.count_step(optim, &lr, &module, &grads) {
            Ok(StepOutcome::Stepped | StepOutcome::NoGradients) => {
                Ok(optim.step(lr, module, into_tested(grads)))
            }
            Ok(_) => Ok(module),
            Err(error) => Err(failed(&self.scaler, module, error)),
        }
    }

    /// Counts a step, or refuses it. Returns what becomes of it.
    fn count_step<O: ModuleOptim, M: Module>(
        &mut self,
        optim: &O,
        lr: &ModuleLearningRate,
        module: &M,
        grads: &UnscaledGradients,
    ) -> Result<StepOutcome, AmpError> {
        let optimizer = std::ptr::from_ref(optim).addr();
        // Gradients may have been changed since they were tested.
        let accepted = (optim.check_settings())
            .and_then(|()| Entries::find(module, Some(grads.params()), None, Some(lr)))
            .map(|entries| keep_statistics(self, module, entries.buffers))
            .and_then(|()| self.check_update(grads, optimizer))
            .and_then(|()| check_accepted(optim, grads));
        let counted = self.count(grads, optimizer, accepted);
        let outcome = self.last_outcome();
        repair_statistics(self, module, outcome, false);
        counted
    }

    /// Refuses a second step of an optimizer for the same parameters before the `update`, as PyTorch does.
    fn check_update(&self, grads: &UnscaledGradients, optimizer: usize) -> Result<(), AmpError> {
        let again = |id: &ParamId| {
            let by = self.stepped.get(id);
            by.is_some_and(|by| {
                optimizer == OBSERVED || by.contains(&OBSERVED) || by.contains(&optimizer)
            })
        };
        match grads.parameters().find(|(_, id)| again(id)) {
            Some((path, _)) => Err(AmpError::UpdateMissing {
                parameter: path.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Counts gradients that were `accepted` as a step of an optimizer.
    fn count(
        &mut self,
        grads: &UnscaledGradients,
        optimizer: usize,
        accepted: Result<(), AmpError>,
    ) -> Result<StepOutcome, AmpError> {
        // Nothing is stepped with the learning rate of a scheduler where gradients are observed.
        let is_call = optimizer != OBSERVED;
        let counted = (self.iteration).step(&mut self.scaler, grads, accepted, is_call);
        match &counted {
            Ok(_) if !spares_scale(grads) => {
                for (_, id) in grads.parameters() {
                    self.stepped.entry(id).or_default().push(optimizer);
                }
            }
            Ok(_) => {}
            Err(error) => self.end_if_exhausted(error),
        }
        counted
    }

    /// Forgets what was stepped, where one skip too many in a row has ended the iteration.
    fn end_if_exhausted(&mut self, error: &AmpError) {
        if matches!(error, AmpError::LossScaleExhausted { .. }) {
            self.stepped.clear();
        }
    }

    /// Ends the iteration: backs the scale off if any of its gradients overflowed, counts towards growth if not.
    ///
    /// Gradients that were unscaled and dropped count too, as with PyTorch: as if they had been given to
    /// [`discard`](Self::discard). Returns the joint outcome, [`Stepped`](StepOutcome::Stepped) or
    /// [`Skipped`](StepOutcome::Skipped); none, and nothing changes, if no gradients were seen since the last update (PyTorch
    /// raises an error there). Does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`], [`AmpError::LossNotFinite`] or [`AmpError::TwoPrecisions`] if gradients that were dropped are an overflow
    /// too many; the iteration is ended.
    pub fn update(&mut self) -> Result<Option<StepOutcome>, AmpError> {
        self.stepped.clear();
        self.iteration.end(&mut self.scaler, None)
    }

    /// Ends the iteration with a loss scale of the caller's choice, whatever the outcome was.
    ///
    /// PyTorch's `update(new_scale)`: the growth tracker stays. The factors of regions move by the outcome.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the iteration not ended, unless `scale` is positive, finite as an f32 and within
    /// `min_scale` and `max_scale`. Otherwise as [`update`](Self::update).
    pub fn update_to(&mut self, scale: f64) -> Result<Option<StepOutcome>, AmpError> {
        let before = self.schedule().scale();
        self.set_loss_scale(scale)?;
        self.stepped.clear();
        self.iteration.end(&mut self.scaler, Some(before))
    }

    /// Counts unscaled gradients as a step of this scaler's without stepping on them: for gradients that are added to
    /// another scaler's (one scaler for each loss, Apex's `num_losses`) and stepped on there.
    ///
    /// Returns whether they overflow; the next [`update`](Self::update) moves the scale accordingly. Waits for
    /// the device where all gradients are zero, to warn.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`], [`AmpError::LossNotFinite`] or [`AmpError::TwoPrecisions`] as [`try_step`](Self::try_step), and
    /// [`AmpError::UpdateMissing`] if the parameters were stepped or observed already.
    pub fn observe(&mut self, grads: &UnscaledGradients) -> Result<StepOutcome, AmpError> {
        let accepted = self.check_update(grads, OBSERVED);
        self.count(grads, OBSERVED, accepted)
    }

    /// Throws gradients away without a step, and counts that.
    ///
    /// If the gradients were unscaled, the next [`update`](Self::update) moves the loss scale as for a step (PyTorch:
    /// `unscale_` without `step`), and an overflow counts among the skips in a row. Gradients that nobody has tested, plain or
    /// still scaled ones, do not move it: many of them in a row warn, since an overflow would come again and again. Test them with
    /// [`unscale`](Self::unscale) before. Parameters, optimizer and the count of steps stay as they are, and the parameters can be
    /// stepped in the same iteration with other gradients. Does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`], [`AmpError::LossNotFinite`] or [`AmpError::TwoPrecisions`] if that is one skip too many in a row, as
    /// [`try_step`](Self::try_step); they are counted as discarded.
    pub fn discard(&mut self, grads: impl Into<StepGradients>) -> Result<(), AmpError> {
        let discarded = self.iteration.discard(&mut self.scaler, grads.into());
        discarded.inspect_err(|error| self.end_if_exhausted(error))
    }
}

/// Micro-batches.
impl GradScaler {
    /// Adds the gradients of a micro-batch to a window; when that makes it full, empties it and returns the gradients to
    /// step with, unscaled.
    ///
    /// Takes Burn's own gradients, which are unscaled, [`ScaledGradients`] or [`UnscaledGradients`];
    /// gradients of parameters that are not in `module` are dropped. By default the sum has the scaler's loss scale at the
    /// window's first micro-batch, whatever scale the micro-batches carry; only the last of them waits for the device, once. With
    /// [`skip_micro_batch`](burn_amp_core::AccumulationConfig::skip_micro_batch) each call with scaled gradients waits once, and the one
    /// that fills the window once more, for the finished sum; the loss scale moves at once, so that an [`update`](Self::update)
    /// after the step changes nothing. A micro-batch that overflows is dropped, counted in
    /// [`StepCounters::dropped`](burn_amp_core::StepCounters::dropped) and logged. Disabled: nothing is tested, and no call waits.
    ///
    /// A micro-batch without gradients counts: a mean divides by it too, as that of one large batch would. (Keras ignores such
    /// a call.)
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] if a micro-batch is dropped after `max_consecutive_skips` dropped in a row, or where the
    /// scale cannot go lower if `raise_error_at_min_scale` is set, [`AmpError::LossNotFinite`] and [`AmpError::TwoPrecisions`] where that is the cause; the
    /// window stays as it was. [`AmpError::UnfrozenBase`] if the base of a low-rank adapter has gradients. [`AmpError::ForeignRecord`] if a sum of the window is of
    /// no parameter of `module`, not of its shape, or not in the dtype in which its gradients are summed;
    /// [`AmpError::GradientShape`] if a gradient does not have its parameter's shape;
    /// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype. Nothing was changed then.
    pub fn accumulate<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        grads: impl Into<StepGradients>,
        module: &M,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        fill(&mut self.scaler, window, Some(grads.into()), module)
    }

    /// Empties a window before it is full, at the end of an epoch, and returns the gradients to step with, unscaled; none
    /// if it is empty. A mean is that of the micro-batches that are in it.
    ///
    /// Gradients are f32, or f64 for f64 parameters, unless
    /// [`parameter_dtype_gradients`](GradScalerConfig::parameter_dtype_gradients) is set. Waits for the device
    /// once; a disabled scaler tests nothing and does not wait.
    ///
    /// # Panics
    ///
    /// Where [`try_flush`](Self::try_flush) returns an error, with its message.
    #[track_caller]
    pub fn flush<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        module: &M,
    ) -> Option<UnscaledGradients> {
        or_panic(self.try_flush(window, module))
    }

    /// Empties a window as [`flush`](Self::flush) does, for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if a sum is of no parameter of `module`, not of its shape, or not in the dtype in which its
    /// gradients are summed: the window belongs to another model, and stays as it was. [`AmpError::UnsupportedDType`] if the
    /// device cannot compute in a sum's dtype.
    pub fn try_flush<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        module: &M,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        if window.is_empty() {
            enter_call(self, StepOutcome::NoGradients);
            return Ok(None);
        }
        fill(&mut self.scaler, window, None, module)
    }
}

/// Records.
impl GradScaler {
    /// The state, to be stored: that of [`Scaler::to_record`], and the outcome of an iteration that has
    /// not been ended by `update`. Waits for the device only in an open window, for regions whose rules look at gradients.
    pub fn to_record(&self) -> AmpRecord {
        self.iteration.to_record(&self.scaler)
    }

    /// Takes over a stored state, as [`Scaler::load_record`] does, and with it an iteration that was not ended.
    ///
    /// # Errors
    ///
    /// As [`Scaler::load_record`]; the present state stays as it was.
    pub fn load_record(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        let iteration = Joint::of_record(&record);
        self.scaler.load_record(record)?;
        self.iteration = iteration;
        self.stepped.clear();
        Ok(())
    }

    /// Starts again: the schedule at its initial scale, counters at zero. Settings stay.
    pub fn reset(&mut self) {
        self.scaler.reset();
        self.iteration = Joint::default();
        self.stepped.clear();
    }
}

//! The steps of a scaler, and the iterations that they make up: PyTorch's `step` and `update`.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
    tensor::DType,
};

use super::GradScaler;
use crate::error::{AmpError, StepError, or_panic};
use crate::gradients::entries::{Entries, Entry, ids_of};
use crate::gradients::{StepGradients, UnscaledGradients};
use crate::journal::Ended;
use crate::journal::account::{Purpose, log_skip};
use crate::scale::finding::{Finding, Rejection};
use crate::scale::loss_scale::{Evidence, StepOutcome};
use crate::scaler::iteration::{Iteration, OBSERVED};
use crate::{update::module_optim::ModuleOptim, values::parameters};

impl GradScaler {
    /// Steps the optimizer, or skips the step if the gradients overflow, and records which it was.
    ///
    /// On a skipped step the module is returned unchanged and the optimizer is not called. Without any
    /// gradients (an empty module, frozen parameters, a loss that reached none of them) the optimizer is called
    /// with none and the step is counted, but the loss scale stays; the first such step warns. Call
    /// [`update`](Self::update) once after all steps of the iteration. [`last_outcome`](Self::last_outcome) returns what this
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

    /// As [`step`](Self::step), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// The error has the unchanged module. [`AmpError::LossScaleExhausted`] if the gradients overflow after
    /// `max_consecutive_skips` skips in a row, or where the scale cannot go lower if
    /// [`raise_error_at_min_scale`](crate::GradScalerConfig::raise_error_at_min_scale) is set; the step is counted as skipped. Of a
    /// window whose micro-batches were tested one by one
    /// ([`skip_micro_batch`](crate::AccumulationConfig::skip_micro_batch)) only the former: its sum overflows by itself.
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
        self.account().begin_call();
        self.pending.take(&grads.pending);
        // Gradients may have been changed since they were tested.
        let checked = optim.check_settings();
        let entries = checked.and_then(|()| {
            Entries::find(parameters(&module), Some(grads.params()), None, Some(&lr))
        });
        let decided = entries.and_then(|entries| {
            self.begin_step(&module, entries.buffers);
            let decided = self.count_step(optim, grads);
            self.leave_step(&module, false);
            decided
        });
        let decided = decided.map_err(|error| error.with_culprit(&module));
        self.enter();
        let is_step = self.account().is_step;
        self.iteration.shown += usize::from(is_step);
        if let Err(error) = &decided {
            self.notify(self.last_outcome(), Some(error));
        }
        match decided {
            Ok(Some(grads)) => Ok(optim.step(lr, module, grads)),
            Ok(None) => Ok(module),
            Err(error) => Err(StepError::new(module, error)),
        }
    }

    /// Ends a step that is an iteration by itself: counts it, and moves the scale. The gradients, if they are to be stepped with: they are finite,
    /// and not `rejected`.
    pub(crate) fn end_step<O: ModuleOptim>(
        &mut self,
        optim: &O,
        grads: UnscaledGradients,
        rejected: Option<Rejection>,
    ) -> Result<Option<GradientsParams>, AmpError> {
        check_gradients(optim, &grads)?;
        self.look_at(&grads);
        let is_applied = !grads.skips() && rejected.is_none();
        let found = Finding {
            rejected,
            ..grads.finding.clone()
        };
        self.watch.start();
        self.ledger.end(Purpose::Step, &found)?;
        Ok(is_applied.then(|| grads.into_tested()))
    }

    /// Counts a step, which moves the scale when the iteration ends. The gradients, if they are to be stepped with: they are finite.
    fn count_step<O: ModuleOptim>(
        &mut self,
        optim: &O,
        grads: UnscaledGradients,
    ) -> Result<Option<GradientsParams>, AmpError> {
        let optimizer = std::ptr::from_ref(optim).addr();
        self.iteration.check(&grads, optimizer)?;
        check_gradients(optim, &grads)?;
        let is_applied = !grads.skips();
        self.count_for(&grads, optimizer)?;
        Ok(is_applied.then(|| grads.into_tested()))
    }

    /// Counts a step of these parameters, which are stepped once in an iteration.
    fn count_for(&mut self, grads: &UnscaledGradients, optimizer: usize) -> Result<(), AmpError> {
        self.look_at(grads);
        let found = grads.finding.clone();
        self.count(Purpose::Step, &found)?;
        let outcome = self.last_outcome();
        if self.iteration.outcome != Some(StepOutcome::Skipped) {
            self.iteration.outcome = outcome;
        }
        if !found.spares_scale() {
            self.iteration.mark(grads, optimizer);
        }
        Ok(())
    }

    /// Counts gradients, which move the scale when the iteration ends. After one skip too many in a row it is over.
    fn count(&mut self, purpose: Purpose, found: &Finding) -> Result<(), AmpError> {
        let is_first = self.iteration.seen != Some(Evidence::Overflow);
        let recorded = (self.ledger).count(purpose, found, is_first);
        match &recorded {
            Ok(()) => self.iteration.record(found),
            Err(_) if found.spares_scale() => {}
            Err(_) => drop(self.end_iteration()),
        }
        recorded
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
        let outcome = self.iteration.outcome;
        let ended = self.advance();
        self.notify_ended(outcome, ended.as_ref().err());
        ended
    }

    /// As [`update`](Self::update), and no observer is notified.
    pub(crate) fn advance(&mut self) -> Result<Option<StepOutcome>, AmpError> {
        let (counted, ended) = self.end_with_dropped();
        if let Some(seen) = ended.seen {
            (self.ledger).advance(seen, Purpose::Step, &ended.overflows);
        }
        self.ledger.show_end(ended.shown, self.loss_scale());
        counted.map(|()| ended.seen.map(Evidence::outcome))
    }

    /// All steps of an iteration are one for an observer.
    fn notify_ended(&self, outcome: Option<StepOutcome>, error: Option<&AmpError>) {
        if outcome.is_some() || error.is_some() {
            self.notify(outcome, error);
        }
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
        let (counted, ended) = self.end_with_dropped();
        self.live().end_regions(ended.seen);
        self.ledger.show_end(ended.shown, self.loss_scale());
        if self.is_enabled() && ended.seen == Some(Evidence::Overflow) {
            let after = self.schedule().scale();
            log_skip([before, after], Purpose::Step, &ended.overflows);
        }
        self.live().events.end_iteration(self.live().tested());
        self.notify_ended(ended.outcome, counted.as_ref().err());
        counted.map(|()| ended.seen.map(Evidence::outcome))
    }

    /// Ends an iteration of which nothing is left but gradients that were dropped, if there are any.
    pub(crate) fn resolve_dropped(&mut self) -> Result<(), AmpError> {
        if !self.is_in_iteration() {
            return Ok(());
        }
        let counted = self.count_dropped();
        if counted.is_ok() && self.iteration.seen.is_some() {
            self.advance()?;
        }
        self.iteration = Iteration::default();
        counted
    }

    /// Ends an iteration, with gradients that were dropped in it. Whether these were an error.
    fn end_with_dropped(&mut self) -> (Result<(), AmpError>, Iteration) {
        (self.count_dropped(), self.end_iteration())
    }

    /// Counts gradients that were unscaled and dropped as discarded ones.
    fn count_dropped(&mut self) -> Result<(), AmpError> {
        let dropped = self.pending.dropped();
        self.pending.take(&dropped);
        for finding in dropped {
            if finding.overflow.is_some() {
                self.buffers.suspect();
            }
            self.count(Purpose::Dropped, &finding)?;
        }
        Ok(())
    }

    fn end_iteration(&mut self) -> Iteration {
        self.watch.start();
        std::mem::take(&mut self.iteration)
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
        self.account().begin_call();
        self.pending.take(&grads.pending);
        let observed = self.iteration.check(grads, OBSERVED);
        let observed = observed.and_then(|()| self.count_for(grads, OBSERVED));
        // Nothing was stepped with the learning rate of a scheduler.
        self.ledger.show_ended(Some(Ended {
            loss_scale: self.loss_scale(),
            caller: None,
        }));
        let is_step = self.account().is_step;
        self.iteration.shown += usize::from(is_step);
        observed.map(|()| self.last_outcome().unwrap_or(StepOutcome::NoGradients))
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
        self.account().begin_call();
        self.account().outcome = Some(StepOutcome::Dropped);
        let tested = match grads.into() {
            StepGradients::Unscaled(grads) => Some(grads),
            _ => None,
        };
        if (tested.as_ref()).is_none_or(UnscaledGradients::skips) {
            self.buffers.suspect();
        }
        // Of untested gradients nobody knows the parameters: all that came are theirs.
        let (until, ids) = match &tested {
            Some(grads) => (self.live().tested(), ids_of(&grads.entries)),
            None => (u64::MAX, Vec::new()),
        };
        self.live().events.discard(until, &ids);
        let recorded = match tested.filter(|_| self.is_enabled()) {
            Some(grads) => {
                self.pending.take(&grads.pending);
                self.remember(&grads);
                self.count(Purpose::Discarded, &grads.finding)
            }
            None => {
                self.account().record_untested(self.is_enabled());
                Ok(())
            }
        };
        self.enter();
        recorded
    }
}

/// Refuses gradients that an optimizer cannot step with as they are now: they may have been changed since they were tested.
fn check_gradients<O: ModuleOptim>(optim: &O, grads: &UnscaledGradients) -> Result<(), AmpError> {
    check_accepted(optim, &grads.entries, |entry| grads.dtype_of(entry))
}

/// Refuses gradients of dtypes that an optimizer cannot combine with their parameters.
pub(super) fn check_accepted<O: ModuleOptim>(
    optim: &O,
    entries: &[Entry],
    dtype: impl Fn(&Entry) -> DType,
) -> Result<(), AmpError> {
    let refused = |entry: &&Entry| !optim.accepts(entry.parameter, dtype(entry));
    match entries.iter().find(refused) {
        None => Ok(()),
        Some(entry) => Err(AmpError::HalfPrecisionParameter {
            parameter: entry.path.clone(),
            parameter_dtype: entry.parameter,
            gradient_dtype: dtype(entry),
        }),
    }
}

//! Micro-batches: the scaler's side of an [`AccumulationWindow`].

use burn::module::Module;

use super::{GradScaler, step::check_accepted};
use crate::{
    account::Purpose,
    accumulation::AccumulationWindow,
    dtype::optimizer_dtype,
    entries::{Entries, Entry, Traversal},
    error::AmpError,
    gradients::{StepGradients, UnscaledGradients},
    loss_scale::StepOutcome,
    module_optim::ModuleOptim,
    unscale::{pass_through, unscale},
};

impl GradScaler {
    /// Adds the gradients of a micro-batch to a window; when that makes it full, empties it and returns the gradients to
    /// step with, unscaled.
    ///
    /// Takes Burn's own gradients, which are unscaled, [`ScaledGradients`](crate::ScaledGradients) or [`UnscaledGradients`];
    /// gradients of parameters that are not in `module` are dropped. By default the sum has the scaler's loss scale at the
    /// window's first micro-batch, whatever scale the micro-batches carry; only the last of them waits for the device, once. With
    /// [`skip_micro_batch`](crate::AccumulationConfig::skip_micro_batch) each call with scaled gradients waits once, and the one
    /// that fills the window once more, for the finished sum; the loss scale moves at once, so that an [`update`](Self::update)
    /// after the step changes nothing. A micro-batch that overflows is dropped, counted in
    /// [`StepCounters::dropped`](crate::StepCounters::dropped) and logged. Disabled: nothing is tested, and no call waits.
    ///
    /// A micro-batch without gradients counts: a mean divides by it too, as that of one large batch would. (Keras ignores such
    /// a call.)
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] if a micro-batch is dropped after `max_consecutive_skips` dropped in a row, or where the
    /// scale cannot go lower if `raise_error_at_min_scale` is set; the window stays as it was. [`AmpError::ForeignRecord`] if a sum of the window is of
    /// no parameter of `module`, not of its shape, or not in the dtype in which its gradients are summed;
    /// [`AmpError::GradientShape`] if a gradient does not have its parameter's shape;
    /// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype. Nothing was changed then.
    pub fn accumulate<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        grads: impl Into<StepGradients>,
        module: &M,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        let grads = grads.into();
        self.account().begin_call();
        let traversal = Traversal {
            grads: Some(grads.params()),
            sums: Some(&window.state.sums),
            lr: None,
        };
        let entries = traversal.of(module)?;
        let full = self.add_micro_batch(window, grads, entries)?;
        Ok(full.map(|grads| self.registered(grads)))
    }

    /// Adds the gradients that a traversal has found.
    pub(crate) fn add_micro_batch(
        &mut self,
        window: &mut AccumulationWindow,
        grads: StepGradients,
        entries: Entries,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        let found: Vec<Entry> = entries.gradients().cloned().collect();
        if window.drops_micro_batches() {
            // Rounding to a half-precision dtype comes after the sum.
            let grads = self.tested(grads, &entries, false)?;
            if self.settle(&grads)?.is_skipped() {
                return Ok(None);
            }
            window.add(grads.into_tested(), &found, 1.0);
        } else {
            self.add_untested(window, grads, &found);
        }
        self.account().outcome = Some(StepOutcome::Accumulated);
        self.live().events().take_micro_batch();
        match window.is_full() {
            true => self.empty(window, entries.into_sums()).map(Some),
            false => Ok(None),
        }
    }

    /// Gradients of any kind, unscaled and tested.
    pub(crate) fn tested(
        &mut self,
        grads: StepGradients,
        entries: &Entries,
        in_own_dtype: bool,
    ) -> Result<UnscaledGradients, AmpError> {
        self.look_over(&grads);
        match grads {
            StepGradients::Plain(grads) => self.test(grads, entries),
            StepGradients::Scaled(grads) => {
                let found = entries.gradients().cloned().collect();
                self.unscale_entries(grads, found, in_own_dtype)
            }
            StepGradients::Unscaled(grads) => Ok(grads),
        }
    }

    /// Adds gradients to a window that is tested as a whole.
    fn add_untested(
        &mut self,
        window: &mut AccumulationWindow,
        grads: StepGradients,
        found: &[Entry],
    ) {
        self.look_over(&grads);
        let (params, scale, overflow) = match grads {
            StepGradients::Plain(grads) => (grads, 1.0, None),
            StepGradients::Scaled(grads) => {
                let scale = grads.loss_scale();
                (grads.into_params(), scale, None)
            }
            StepGradients::Unscaled(grads) => {
                let overflow = grads.verdict().overflow;
                (grads.into_tested(), 1.0, overflow)
            }
        };
        let common = window.scale_or(self.loss_factor());
        window.add(params, found, f64::from(common) / f64::from(scale));
        if let Some(path) = overflow {
            window.add_overflow(&path, found);
        }
    }

    /// What gradients tell of themselves: those that were tested are counted by the caller, plain ones may be those of a scaled loss.
    fn look_over(&mut self, grads: &StepGradients) {
        match grads {
            StepGradients::Unscaled(grads) => self.take_verdict(grads),
            StepGradients::Plain(_) => self.check_plain(),
            StepGradients::Scaled(_) => {}
        }
    }

    /// Empties a window before it is full, at the end of an epoch, and returns the gradients to step with, unscaled; none
    /// if it is empty. A mean is that of the micro-batches that are in it.
    ///
    /// Gradients are f32, or f64 for f64 parameters, unless
    /// [`parameter_dtype_gradients`](crate::GradScalerConfig::parameter_dtype_gradients) is set. Waits for the device
    /// once; a disabled scaler tests nothing and does not wait.
    ///
    /// # Panics
    ///
    /// Where [`try_flush`](Self::try_flush) returns an error, with its message.
    pub fn flush<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        module: &M,
    ) -> Option<UnscaledGradients> {
        self.try_flush(window, module)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`flush`](Self::flush), for runs that want to handle a failure.
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
        self.account().begin_call();
        if window.is_empty() {
            self.account().outcome = Some(StepOutcome::NoGradients);
            return Ok(None);
        }
        let traversal = Traversal {
            sums: Some(&window.state.sums),
            ..Default::default()
        };
        let entries = traversal.of(module)?;
        let grads = self.empty(window, entries.into_sums())?;
        self.account().outcome = Some(StepOutcome::Accumulated);
        Ok(Some(self.registered(grads)))
    }

    /// Empties a window into the gradients to step with.
    pub(crate) fn empty(
        &mut self,
        window: &mut AccumulationWindow,
        entries: Vec<Entry>,
    ) -> Result<UnscaledGradients, AmpError> {
        let settled = window.drops_micro_batches();
        let (sums, divisor) = window.take(&entries);
        let grads = if self.is_enabled() {
            unscale(
                sums,
                entries,
                1.0 / divisor,
                self.config().parameter_dtype_gradients,
                self.schedule().edge(),
            )?
        } else {
            let sums = pass_through(sums, entries);
            match divisor {
                1.0 => sums.narrowed(),
                divisor => sums.mul_scalar(1.0 / divisor).narrowed(),
            }
        };
        Ok(match settled {
            true => grads.settled(),
            false => self.explained(grads),
        })
    }

    /// Lets the loss scale learn from one micro-batch: the test of a step, and its update.
    fn settle(&mut self, grads: &UnscaledGradients) -> Result<StepOutcome, AmpError> {
        self.look_at_losses(grads);
        self.remember(grads);
        let found = grads.verdict();
        if grads.has_overflow() {
            self.buffers.suspect();
        }
        let ended = self.step_end().end(Purpose::MicroBatch, &found);
        self.watch.forget();
        ended?;
        Ok(found.observation().outcome)
    }

    /// Refuses, before a micro-batch enters a window, gradients that the optimizer would not take at the window's end.
    pub(crate) fn check_accepted<O: ModuleOptim>(
        &self,
        optim: &O,
        entries: &Entries,
    ) -> Result<(), AmpError> {
        if !self.is_enabled() {
            return Ok(());
        }
        let in_own_dtype = self.config().parameter_dtype_gradients;
        let gradient = |entry: &Entry| optimizer_dtype(entry.parameter, in_own_dtype).into();
        check_accepted(
            optim,
            entries.gradients().map(|entry| (entry, gradient(entry))),
        )
    }
}

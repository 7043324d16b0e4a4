//! Micro-batches: the scaler's side of an [`AccumulationWindow`].

use burn::module::Module;

use super::{GradScaler, step::check_accepted};
use crate::gradients::entries::{Entries, Entry, ids_of};
use crate::gradients::{ScaledGradients, StepGradients, UnscaledGradients};
use crate::values::{AnyTensor, optimizer_dtype, parameters};
use crate::{
    error::{AmpError, or_panic},
    gradients::unscale::unscale,
    journal::account::Purpose,
    scale::finding::Finding,
    scale::loss_scale::{SkipCause, StepOutcome},
    scaler::accumulation::AccumulationWindow,
    update::module_optim::ModuleOptim,
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
        let filled = self.fill(window, Some(grads.into()), module);
        self.enter();
        filled
    }

    /// Adds gradients to a window, or empties it.
    fn fill<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        grads: Option<StepGradients>,
        module: &M,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        self.account().begin_call();
        let params = grads.as_ref().map(StepGradients::params);
        let entries = Entries::find(parameters(module), params, Some(&window.state.sums), None)?;
        if let Some(grads) = &grads {
            self.take_tested(grads);
        }
        let full = self.inspect(Some(window), grads, entries)?;
        Ok(full.map(|grads| self.registered(grads)))
    }

    /// Tests gradients, or adds them to a window. The gradients to step with, unscaled: these, or those of the window if it is full, or if
    /// there are no others.
    pub(crate) fn inspect(
        &mut self,
        window: Option<&mut AccumulationWindow>,
        grads: Option<StepGradients>,
        entries: Entries,
    ) -> Result<Option<UnscaledGradients>, AmpError> {
        if let Some(StepGradients::Plain(_)) = &grads {
            self.check_plain();
        }
        let Some(window) = window else {
            let in_own_dtype = self.config().parameter_dtype_gradients;
            let tested = grads.map(|grads| self.test(grads, &entries, in_own_dtype));
            return tested.transpose();
        };
        if let Some(grads) = grads
            && !self.add_micro_batch(window, grads, &entries)?
        {
            return Ok(None);
        }
        self.empty(window, entries.sums).map(Some)
    }

    /// Adds the gradients of a micro-batch to a window, unless they overflow and it leaves those out. Whether it is full then.
    fn add_micro_batch(
        &mut self,
        window: &mut AccumulationWindow,
        grads: StepGradients,
        entries: &Entries,
    ) -> Result<bool, AmpError> {
        let found = &entries.gradients;
        if window.config.skip_micro_batch {
            // Rounding to a half-precision dtype comes after the sum.
            let grads = self.test(grads, entries, false)?;
            self.end_micro_batch(&grads)?;
            if grads.skips() {
                return Ok(false);
            }
            window.add(grads.into_tested(), found, 1.0);
        } else {
            let (params, scale, overflow) = match grads {
                StepGradients::Plain(grads) => (grads, 1.0, None),
                StepGradients::Scaled(ScaledGradients { params, scale }) => (params, scale, None),
                StepGradients::Unscaled(grads) => {
                    let Finding {
                        overflow, cause, ..
                    } = grads.finding.clone();
                    (grads.into_tested(), 1.0, overflow.map(|path| (path, cause)))
                }
            };
            // That of the first micro-batch, for the whole window.
            let common = *window.state.scale.get_or_insert(self.loss_factor());
            window.add(params, found, f64::from(common) / f64::from(scale));
            if let Some((path, cause)) = overflow {
                window.add_overflow(&path, cause, found);
            }
            let events = &mut window.state.events;
            self.live().move_to_window(events, &ids_of(found));
        }
        self.account().outcome = Some(StepOutcome::Accumulated);
        Ok(window.state.len >= window.config.micro_batches)
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
    #[track_caller]
    pub fn flush<M: Module>(
        &mut self,
        window: &mut AccumulationWindow,
        module: &M,
    ) -> Option<UnscaledGradients> {
        or_panic(self.try_flush(window, module))
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
        if window.is_empty() {
            self.enter_call(StepOutcome::NoGradients);
            return Ok(None);
        }
        let grads = self.fill(window, None, module)?;
        self.account().outcome = Some(StepOutcome::Accumulated);
        Ok(grads)
    }

    /// A call that steps with nothing: nothing is stepped with its learning rate.
    #[doc(hidden)]
    pub fn enter_call(&self, outcome: StepOutcome) {
        self.account().begin_call();
        self.account().outcome = Some(outcome);
        self.enter();
    }

    /// Empties a window into the gradients to step with.
    fn empty(
        &mut self,
        window: &mut AccumulationWindow,
        mut entries: Vec<Entry>,
    ) -> Result<UnscaledGradients, AmpError> {
        let cause = window.state.cause;
        let events = std::mem::take(&mut window.state.events);
        let (mut sums, divisor) = window.take(&entries);
        if !self.is_enabled() {
            for entry in &mut entries {
                let mean = |sum: AnyTensor| sum.mul_scalar(1.0 / divisor).cast(entry.parameter);
                entry.change(&mut sums, mean);
                entry.gradient = entry.parameter;
            }
            return Ok(UnscaledGradients::new(sums, entries, None));
        }
        let in_own_dtype = self.config().parameter_dtype_gradients;
        let edge = self.schedule().edge();
        let mut grads = unscale(sums, entries, 1.0 / divisor, in_own_dtype, edge)?;
        grads.finding.is_resolved = window.config.skip_micro_batch;
        if !grads.finding.is_resolved {
            grads = self.explained(grads, Some(events));
            // That of a micro-batch that was tested before it came here.
            let is_open = matches!(grads.finding.cause, SkipCause::Scale | SkipCause::Unknown);
            grads.finding.cause = cause.filter(|_| is_open).unwrap_or(grads.finding.cause);
        }
        Ok(grads)
    }

    /// Moves the loss scale by one micro-batch: the test of a step, and its update.
    fn end_micro_batch(&mut self, grads: &UnscaledGradients) -> Result<(), AmpError> {
        self.look_at(grads);
        if grads.skips() {
            self.buffers.suspect();
        }
        (self.ledger).end(Purpose::MicroBatch, &grads.finding)
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
        check_accepted(optim, &entries.gradients, |entry| {
            optimizer_dtype(entry.parameter, in_own_dtype).into()
        })
    }
}

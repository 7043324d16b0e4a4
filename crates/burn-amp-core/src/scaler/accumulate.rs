//! Micro-batches: the scaler's side of an [`AccumulationWindow`].

use std::sync::Arc;

use super::{Failed, Scaler};
use crate::gradients::entries::{Entries, Entry, ids_of};
use crate::gradients::{GradientStatus, ScaledGradients, StepGradients, UnscaledGradients};
use crate::values::AnyTensor;
use crate::{
    error::AmpError,
    gradients::unscale::unscale,
    scale::account::{Call, Purpose},
    scale::finding::Finding,
    scale::loss_scale::{SkipCause, StepOutcome},
    scaler::accumulation::AccumulationWindow,
};

/// The result of a test of gradients that were to be stepped with.
pub(crate) enum Inspected {
    /// They were tested: these, or those of a window that is full, with the measures of the micro-batch that has filled it.
    Tested(Box<UnscaledGradients>, Option<Arc<GradientStatus>>),
    /// They are in a window that is not full, or were left out of it.
    Waits(StepOutcome),
}

impl Scaler {
    /// Tests gradients, or adds them to a window: that is tested if it is full then, or if there are no others.
    pub(crate) fn inspect(
        &mut self,
        window: Option<&mut AccumulationWindow>,
        grads: Option<StepGradients>,
        entries: Entries,
    ) -> Result<Inspected, Failed> {
        if self.amp.is_none() && matches!(grads, Some(StepGradients::Plain(_))) && self.is_enabled()
        {
            self.watch.check_plain();
        }
        let mut last = None;
        let tested = match (window, grads) {
            (None, Some(grads)) => {
                let in_own_dtype = self.live.config().parameter_dtype_gradients;
                self.test(grads, &entries, in_own_dtype)?
            }
            (Some(window), Some(grads)) => {
                let (outcome, status) = self.add_micro_batch(window, grads, &entries)?;
                if outcome == StepOutcome::Dropped || !window.is_full() {
                    self.enter(Call::of(outcome, status));
                    return Ok(Inspected::Waits(outcome));
                }
                last = status;
                self.empty(window, entries.sums)?
            }
            (Some(window), None) => self.empty(window, entries.sums)?,
            (None, None) => return Ok(Inspected::Waits(StepOutcome::NoGradients)),
        };
        Ok(Inspected::Tested(tested.into(), last))
    }

    /// Adds the gradients of a micro-batch to a window, unless they overflow and it leaves those out. The outcome, and its measures if it
    /// was tested.
    fn add_micro_batch(
        &mut self,
        window: &mut AccumulationWindow,
        grads: StepGradients,
        entries: &Entries,
    ) -> Result<(StepOutcome, Option<Arc<GradientStatus>>), Failed> {
        let found = &entries.gradients;
        let (mut outcome, mut status) = (StepOutcome::Accumulated, None);
        if window.config.skip_micro_batch {
            // Rounding to a half-precision dtype comes after the sum.
            let grads = self.test(grads, entries, false)?;
            self.look_at(&grads);
            status = grads.known_status();
            if grads.skips() {
                self.buffers.suspect();
                outcome = StepOutcome::Dropped;
            }
            // As the test of a step, and its update.
            let counted = (self.live).count_alone(self.id(), Purpose::MicroBatch, &grads.finding);
            if let Err(error) = counted {
                self.enter(Call::of(outcome, status));
                let outcome = Some(outcome);
                return Err(Failed { error, outcome });
            }
            if grads.skips() {
                return Ok((outcome, status));
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
            self.live.move_to_window(events, &ids_of(found));
        }
        Ok((outcome, status))
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
        let in_own_dtype = self.live.config().parameter_dtype_gradients;
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
}

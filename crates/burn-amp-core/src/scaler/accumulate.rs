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
    scale::finding::Tested,
    scale::loss_scale::StepOutcome,
    scaler::accumulation::AccumulationWindow,
};

impl Scaler {
    /// Adds the gradients of a micro-batch to a window, unless they overflow and it leaves those out. The outcome, and its measures if it
    /// was tested.
    pub(super) fn add_micro_batch(
        &mut self,
        window: &mut AccumulationWindow,
        grads: StepGradients,
        entries: &Entries,
    ) -> Result<(StepOutcome, Option<Arc<GradientStatus>>), Failed> {
        let found = &entries.gradients;
        if !window.config.skip_micro_batch {
            self.add_untested(window, grads, found);
            return Ok((StepOutcome::Accumulated, None));
        }
        // Rounding to a half-precision dtype comes after the sum.
        let mut grads = self.test(grads, entries, false)?;
        if let Some(ranks) = &self.ranks {
            self.agree(ranks, &mut grads, &mut None)?;
        }
        let status = grads.known_status();
        self.look_at(&grads.finding, status.as_deref());
        let outcome = match grads.finding.skips() {
            true => StepOutcome::Dropped,
            false => StepOutcome::Accumulated,
        };
        // As the test of a step, and its update.
        let purpose = Purpose::MicroBatch;
        let counted = (self.live).count_alone(self.place.id, purpose, &grads.finding);
        if let Err(error) = counted {
            self.enter(Call::of(outcome, status));
            let outcome = Some(outcome);
            return Err(Failed { error, outcome });
        }
        if outcome == StepOutcome::Accumulated {
            window.add(grads.into_tested(), found, 1.0);
        }
        Ok((outcome, status))
    }

    /// Adds the gradients of a micro-batch that is tested with its window.
    fn add_untested(&self, window: &mut AccumulationWindow, grads: StepGradients, found: &[Entry]) {
        let (params, scale, tested) = match grads {
            StepGradients::Plain(grads) => (grads, 1.0, None),
            StepGradients::Scaled(ScaledGradients { params, scale }) => (params, scale, None),
            StepGradients::Unscaled(grads) => {
                let tested = grads.finding.tested.clone();
                (grads.into_tested(), 1.0, Some(tested))
            }
        };
        // That of the first micro-batch, for the whole window.
        let common = *window.state.scale.get_or_insert(self.loss_factor());
        window.add(params, found, f64::from(common) / f64::from(scale));
        if let Some(Tested::Overflow { parameter, cause }) = tested {
            let (regions, _) = self.live.regions_at_fault();
            window.add_overflow(&parameter, (cause, regions), found);
        }
        let events = &mut window.state.events;
        self.live.move_to_window(events, &ids_of(found));
    }

    /// Empties a window into the gradients to step with.
    pub(super) fn empty(
        &mut self,
        window: &mut AccumulationWindow,
        mut entries: Vec<Entry>,
    ) -> Result<UnscaledGradients, AmpError> {
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
        }
        Ok(grads)
    }
}

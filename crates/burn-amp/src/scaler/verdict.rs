//! Gradients that are looked at, or thrown away, without a step.

use super::GradScaler;
use crate::{
    error::AmpError,
    gradients::{StepGradients, UnscaledGradients},
    loss_scale::StepOutcome,
};

impl GradScaler {
    /// Counts unscaled gradients as a step of this scaler's without stepping on them: for gradients that are added to
    /// another scaler's (one scaler for each loss, Apex's `num_losses`) and stepped on there.
    ///
    /// The next [`update`](Self::update) moves the scale by their verdict, which is returned. Waits as
    /// [`step`](Self::step) does.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] as [`try_step`](Self::try_step), and [`AmpError::UpdateMissing`] if the parameters
    /// were stepped or observed already.
    pub fn observe(&mut self, grads: &UnscaledGradients) -> Result<StepOutcome, AmpError> {
        self.iteration.check(grads)?;
        self.underflow_check(grads);
        self.record(grads)?;
        Ok(match grads.has_overflow() {
            true => StepOutcome::Skipped,
            false => StepOutcome::Applied,
        })
    }

    /// Throws gradients away without a step, and counts that.
    ///
    /// What was unscaled is known to the loss scale: the next [`update`](Self::update) moves it as for a step, so that an
    /// overflow is not met again (PyTorch: `unscale_` without `step`). Gradients that are still scaled teach it nothing.
    /// Parameters, optimizer and the count of steps stay as they are, and the parameters can be stepped in the same
    /// iteration with other gradients. Does not wait for the device.
    pub fn discard(&mut self, grads: impl Into<StepGradients>) {
        self.counters.record_discarded();
        self.log_call(false);
        let grads = grads.into();
        if !matches!(&grads, StepGradients::Unscaled(grads) if !grads.has_overflow()) {
            self.suspect_statistics();
        }
        if let StepGradients::Unscaled(grads) = grads
            && self.is_enabled()
            && !grads.is_settled()
        {
            self.remember(&grads);
            self.iteration.learn(&grads);
        }
        if self.iteration.outcome().is_none() {
            self.forget_losses();
        }
    }
}

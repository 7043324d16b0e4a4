//! The getters and setters of PyTorch's five fields.

use super::GradScaler;
use crate::{error::AmpError, loss_scale::LossScale};

impl GradScaler {
    /// The loss scale at present; 1 if disabled (as PyTorch's `get_scale`).
    pub fn loss_scale(&self) -> f32 {
        if self.enabled {
            self.schedule().scale()
        } else {
            1.0
        }
    }

    /// The factor of a growth; 1 for a static scale.
    pub fn growth_factor(&self) -> f64 {
        self.schedule().growth_factor()
    }

    /// The factor of a backoff; 1 for a static scale.
    pub fn backoff_factor(&self) -> f64 {
        self.schedule().backoff_factor()
    }

    /// Clean steps in a row before a growth; 0, for never, with a static scale.
    pub fn growth_interval(&self) -> u32 {
        self.schedule().growth_interval()
    }

    /// Clean steps in a row so far (PyTorch's `_growth_tracker`).
    pub fn growth_tracker(&self) -> u32 {
        self.schedule().growth_tracker()
    }

    /// Sets the loss scale, and with it a new start of the count of skips in a row. The growth tracker stays.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `scale` is positive, finite as an f32 and
    /// within `min_scale` and `max_scale`.
    pub fn set_loss_scale(&mut self, scale: f64) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_scale(scale))?;
        self.counters.reset_consecutive_skips();
        Ok(())
    }

    /// Sets the growth factor.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `factor` is finite and above 1 and the scale dynamic.
    pub fn set_growth_factor(&mut self, factor: f64) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_growth_factor(factor))
    }

    /// Sets the backoff factor.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `factor` lies between 0 and 1 and the scale is dynamic.
    pub fn set_backoff_factor(&mut self, factor: f64) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_backoff_factor(factor))
    }

    /// Sets the growth interval, in steps. One at or below the growth tracker makes the next clean step grow
    /// (PyTorch would never grow again).
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, if `interval` is 0 or the scale static.
    pub fn set_growth_interval(&mut self, interval: u32) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_growth_interval(interval))
    }

    /// Sets the count of clean steps in a row.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `tracker` is below the growth interval.
    pub fn set_growth_tracker(&mut self, tracker: u32) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_growth_tracker(tracker))
    }

    fn change(
        &mut self,
        change: impl FnOnce(LossScale) -> Result<LossScale, crate::loss_scale::InvalidValue>,
    ) -> Result<(), AmpError> {
        self.set_schedule(change(self.schedule())?);
        Ok(())
    }
}

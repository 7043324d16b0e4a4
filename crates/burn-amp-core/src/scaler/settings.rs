//! The values of a loss scale that a program reads and sets.

use super::Scaler;
use crate::error::AmpError;
use crate::scale::loss_scale::{GradScalerConfig, LossScale};

impl Scaler {
    /// The loss scale at present; 1 if disabled (as PyTorch's `get_scale`).
    pub fn loss_scale(&self) -> f32 {
        self.live.loss_scale()
    }

    /// The factor of a growth; 1 for a static scale.
    pub fn growth_factor(&self) -> f64 {
        self.setting(1.0, |config| config.growth_factor)
    }

    /// The factor of a backoff; 1 for a static scale.
    pub fn backoff_factor(&self) -> f64 {
        self.setting(1.0, |config| config.backoff_factor)
    }

    /// Finite steps in a row before a growth, at present; 0, for never, with a static scale.
    pub fn growth_interval(&self) -> u32 {
        let schedule = self.schedule();
        self.setting(0, |_| schedule.growth_interval())
    }

    /// Finite steps in a row so far (PyTorch's `_growth_tracker`).
    pub fn growth_tracker(&self) -> u32 {
        self.schedule().growth_tracker()
    }

    /// Sets the loss scale, and with it a new start of the count of skips in a row. The growth tracker stays.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `scale` is positive, finite as an f32 and
    /// within `min_scale` and `max_scale`, which do not bound a static scale.
    pub fn set_loss_scale(&mut self, scale: f64) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_scale("loss_scale", scale))?;
        self.account(|account| account.end_row());
        self.live.show(self.place.id, false);
        Ok(())
    }

    /// Sets the growth factor.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `factor` is finite and above 1 and the scale dynamic.
    pub fn set_growth_factor(&mut self, factor: f64) -> Result<(), AmpError> {
        self.change(|schedule| {
            schedule.with_setting("growth_factor", factor, |config| {
                config.growth_factor = factor
            })
        })
    }

    /// Sets the backoff factor.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `factor` lies between 0 and 1 and the scale is dynamic.
    pub fn set_backoff_factor(&mut self, factor: f64) -> Result<(), AmpError> {
        self.change(|schedule| {
            schedule.with_setting("backoff_factor", factor, |config| {
                config.backoff_factor = factor
            })
        })
    }

    /// Sets the growth interval, in steps. One at or below the growth tracker makes the next finite step grow
    /// (PyTorch would never grow again).
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, if `interval` is 0 or the scale static.
    pub fn set_growth_interval(&mut self, interval: u32) -> Result<(), AmpError> {
        self.change(|schedule| {
            let change = |config: &mut GradScalerConfig| config.growth_interval = interval;
            schedule.with_setting("growth_interval", interval.into(), change)
        })
    }

    /// Sets the count of finite steps in a row.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `tracker` is below the growth interval and the scale dynamic.
    pub fn set_growth_tracker(&mut self, tracker: u32) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_growth_tracker(tracker))
    }

    /// A setting of the schedule, if it moves.
    fn setting<T>(&self, fixed: T, get: impl FnOnce(&GradScalerConfig) -> T) -> T {
        let config = self.config();
        match config.dynamic {
            true => get(&config),
            false => fixed,
        }
    }

    pub(crate) fn change(
        &mut self,
        change: impl Fn(LossScale) -> Result<LossScale, AmpError>,
    ) -> Result<(), AmpError> {
        self.live.resolve(true);
        self.live.change(change).map(drop)
    }
}

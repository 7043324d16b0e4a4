use burn::config::Config;

use super::Ema;
use crate::error::AmpError;

/// How weights are averaged: Keras's `ema_momentum` and `ema_overwrite_frequency`, and its defaults.
#[derive(Config, Debug, PartialEq)]
pub struct EmaConfig {
    /// The weight of the average so far; that of the new value is 1 less this. From 0 to 1.
    #[config(default = 0.99)]
    pub momentum: f64,
    /// After this many updates, and then again, the model's parameters are replaced by their averages. None: only by
    /// [`Ema::finalize`].
    pub overwrite_frequency: Option<u32>,
    /// Whether a `Learner` validates with the averages in place of the parameters (feature `train`). Other programs use
    /// [`Ema::module`] for it.
    #[config(default = false)]
    pub validation: bool,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl EmaConfig {
    /// Checks the settings. The average starts with the first update.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the momentum is not between 0 and 1, or the frequency 0.
    pub fn init(&self) -> Result<Ema, AmpError> {
        if !(0.0..=1.0).contains(&self.momentum) {
            return Err(AmpError::invalid(
                "momentum",
                self.momentum,
                "between 0 and 1",
            ));
        }
        if self.overwrite_frequency == Some(0) {
            return Err(AmpError::invalid("overwrite_frequency", 0, "at least 1"));
        }
        Ok(Ema::new(self.clone()))
    }
}

use burn::config::Config;

use super::GradScaler;
use crate::{
    dtype::GradientDType,
    error::AmpError,
    loss_scale::{DynamicSettings, HysteresisRefill, LossScale},
};

/// The settings of a [`GradScaler`]: PyTorch's names and defaults, then more.
///
/// Saved to and loaded from JSON as every Burn [`Config`].
///
/// ```
/// use burn_amp::GradScalerConfig;
///
/// let scaler = GradScalerConfig::new().with_init_scale(1024.0).with_growth_interval(500).init()?;
/// assert_eq!(scaler.loss_scale(), 1024.0);
///
/// let error = GradScalerConfig::new().with_backoff_factor(1.5).init().unwrap_err();
/// assert_eq!(error.to_string(), "`backoff_factor` is 1.5, but must be above 0 and below 1");
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct GradScalerConfig {
    /// The loss scale of the first step. Positive.
    #[config(default = 65536.0)]
    pub init_scale: f64,
    /// The scale is multiplied by this after `growth_interval` clean steps in a row. Above 1.
    #[config(default = 2.0)]
    pub growth_factor: f64,
    /// The scale is multiplied by this after an overflow. Between 0 and 1.
    #[config(default = 0.5)]
    pub backoff_factor: f64,
    /// How many clean steps in a row make the scale grow. At least 1.
    #[config(default = 2000)]
    pub growth_interval: u32,
    /// Whether to scale at all. If not, losses and gradients pass untouched, no step is skipped and
    /// nothing is measured.
    #[config(default = true)]
    pub enabled: bool,
    /// Whether the scale moves. If not, it stays at `init_scale`; overflowing steps are still skipped.
    #[config(default = true)]
    pub dynamic: bool,
    /// The scale never falls below this, and a step that overflows there ends the run.
    pub min_scale: Option<f64>,
    /// The scale never grows above this.
    pub max_scale: Option<f64>,
    /// The overflow of this number backs the scale off; N tolerates N - 1 before. At least 1.
    #[config(default = 1)]
    pub hysteresis: u32,
    /// When tolerated overflows are granted anew.
    #[config(default = "HysteresisRefill::OnGrowth")]
    pub hysteresis_refill: HysteresisRefill,
    /// How many steps in a row may be skipped, micro-batches dropped, or windows of clean micro-batches skipped because
    /// their sum overflows: one more ends the run. None: any number.
    #[config(default = "Some(50)")]
    pub max_consecutive_skips: Option<u32>,
    /// The dtype in which the optimizer gets the gradients of half-precision parameters.
    #[config(default = "GradientDType::Full")]
    pub gradient_dtype: GradientDType,
}

impl Default for GradScalerConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl GradScalerConfig {
    /// Checks the settings and builds the scaler.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range: growth factor not
    /// above 1, backoff factor outside (0, 1), growth interval or hysteresis 0, a scale that is not positive
    /// and finite as an f32, `max_scale` below `min_scale`, `init_scale` outside them.
    pub fn init(&self) -> Result<GradScaler, AmpError> {
        Ok(GradScaler::new(self.schedule()?)
            .with_enabled(self.enabled)
            .with_max_consecutive_skips(self.max_consecutive_skips)
            .with_gradient_dtype(self.gradient_dtype))
    }

    /// Checks the settings and builds the schedule.
    pub(crate) fn schedule(&self) -> Result<LossScale, AmpError> {
        // Checked for a static scale as well: a wrong value should not wait for the day it is used.
        let dynamic = LossScale::dynamic(DynamicSettings {
            init_scale: self.init_scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            growth_interval: self.growth_interval,
            min_scale: self.min_scale,
            max_scale: self.max_scale,
            hysteresis: self.hysteresis,
            hysteresis_refill: self.hysteresis_refill,
        })?;
        match self.dynamic {
            true => Ok(dynamic),
            false => Ok(LossScale::fixed(self.init_scale)?),
        }
    }
}

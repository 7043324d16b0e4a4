//! The settings of a loss scale.

use burn::config::{Config, config_to_json};
use serde::{Deserialize, Serialize};

use super::schedule::Schedule;
use crate::error::{AmpError, in_range, short};

/// The settings of a loss scale and of its [`GradScaler`](crate::GradScaler): PyTorch's names and defaults, then more.
///
/// Saved to and loaded from JSON as every Burn [`Config`]. A setting that the JSON does not name has its default; an unknown
/// name is an error.
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GradScalerConfig {
    /// The loss scale of the first step. Positive; default 65536.
    #[serde(with = "crate::number")]
    pub init_scale: f64,
    /// The scale is multiplied by this after `growth_interval` clean steps in a row. Above 1; default 2.
    #[serde(with = "crate::number")]
    pub growth_factor: f64,
    /// The scale is multiplied by this after an overflow. Between 0 and 1; default 0.5.
    #[serde(with = "crate::number")]
    pub backoff_factor: f64,
    /// How many clean steps in a row make the scale grow. At least 1; default 2000.
    pub growth_interval: u32,
    /// Whether to scale at all; default true. If not, losses and gradients pass untouched, no step is skipped and nothing is
    /// measured.
    pub enabled: bool,
    /// Whether the scale moves; default true. If not, it stays at `init_scale`; overflowing steps are still skipped.
    pub dynamic: bool,
    /// The scale never falls below this; default none. A scaler also stops where the scale would have no inverse in f32.
    #[serde(with = "crate::number::optional")]
    pub min_scale: Option<f64>,
    /// Whether an overflow ends the run where the scale cannot go lower: DeepSpeed's setting of this name, and a check that
    /// Megatron-LM and jmp do not have. If not, the default, the scale stays there, steps are skipped, and
    /// `max_consecutive_skips` ends a run that can only skip.
    pub raise_error_at_min_scale: bool,
    /// The scale never grows above this; default none. It never grows to infinity.
    #[serde(with = "crate::number::optional")]
    pub max_scale: Option<f64>,
    /// The scale backs off at the overflow of this number: 1, the default, at the first; N tolerates N - 1 overflows before
    /// (their steps are skipped all the same). At least 1.
    pub hysteresis: u32,
    /// Whether a clean step grants the tolerated overflows again, as DeepSpeed's setting of this name and Apex's
    /// `update_scale_hysteresis`. If not, the default, only a growth of the scale does, as in Megatron-LM.
    pub consecutive_hysteresis: bool,
    /// How many steps in a row may be skipped, micro-batches dropped, or windows of clean micro-batches skipped because their
    /// sum overflows: one more ends the run. None: any number. Default 50.
    pub max_consecutive_skips: Option<u32>,
    /// Which rule moves the scale; default [`Schedule::GrowthInterval`], PyTorch's.
    pub schedule: Schedule,
    /// For so many iterations, skipped ones too, a rising cap holds the scale down, whatever the schedule says; default 0: no
    /// warm-up. For networks whose first gradients are far larger than later ones. A static scale has none.
    pub warmup_steps: u32,
    /// The cap of the first iteration. A normal f32, and at least `min_scale`; default 1024.
    #[serde(with = "crate::number")]
    pub warmup_scale: f64,
    /// The warm-up has so many parts of equal length. The cap doubles from each to the next, and is lifted after the last. From 1
    /// to 126; default 6.
    pub warmup_levels: u32,
    /// Whether the optimizer gets the gradients of f16 and bf16 parameters in the parameter's dtype; default false: in f32.
    ///
    /// Rounded to nearest after unscaling in f32, which can lose what the loss scale saved from underflow: in f16, unscaled
    /// values below 6e-8 become zero (below 6.1e-5 they lose bits), and values above 65504 become infinite, which counts as
    /// an overflow. PyTorch does this with bf16 parameters, and refuses f16 ones.
    pub parameter_dtype_gradients: bool,
}

impl Config for GradScalerConfig {}

impl Default for GradScalerConfig {
    fn default() -> Self {
        Self {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            enabled: true,
            dynamic: true,
            min_scale: None,
            raise_error_at_min_scale: false,
            max_scale: None,
            hysteresis: 1,
            consecutive_hysteresis: false,
            max_consecutive_skips: Some(50),
            schedule: Schedule::GrowthInterval,
            warmup_steps: 0,
            warmup_scale: 1024.0,
            warmup_levels: 6,
            parameter_dtype_gradients: false,
        }
    }
}

impl std::fmt::Display for GradScalerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&config_to_json(self))
    }
}

macro_rules! setters {
    ($($with:ident $field:ident: $type:ty,)*) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $with(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

impl GradScalerConfig {
    /// PyTorch's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        with_init_scale init_scale: f64,
        with_growth_factor growth_factor: f64,
        with_backoff_factor backoff_factor: f64,
        with_growth_interval growth_interval: u32,
        with_enabled enabled: bool,
        with_dynamic dynamic: bool,
        with_min_scale min_scale: Option<f64>,
        with_raise_error_at_min_scale raise_error_at_min_scale: bool,
        with_max_scale max_scale: Option<f64>,
        with_hysteresis hysteresis: u32,
        with_consecutive_hysteresis consecutive_hysteresis: bool,
        with_max_consecutive_skips max_consecutive_skips: Option<u32>,
        with_schedule schedule: Schedule,
        with_warmup_steps warmup_steps: u32,
        with_warmup_scale warmup_scale: f64,
        with_warmup_levels warmup_levels: u32,
        with_parameter_dtype_gradients parameter_dtype_gradients: bool,
    }

    pub(super) fn check(&self) -> Result<(), AmpError> {
        checked_scale("init_scale", self.init_scale)?;
        let growth = self.growth_factor;
        let inside = growth.is_finite() && growth > 1.0;
        in_range("growth_factor", growth, inside, "finite and above 1")?;
        let backoff = self.backoff_factor;
        let inside = backoff > 0.0 && backoff < 1.0;
        in_range("backoff_factor", backoff, inside, "above 0 and below 1")?;
        let counts = [
            ("growth_interval", self.growth_interval),
            ("hysteresis", self.hysteresis),
        ];
        for (field, count) in counts {
            in_range(field, count.into(), count > 0, "at least 1")?;
        }
        if let Some(min) = self.min_scale {
            checked_scale("min_scale", min)?;
        }
        if let Some(max) = self.max_scale {
            let rounded = checked_scale("max_scale", max)?;
            let allowed = format!("at least `min_scale`, {}", bound(self.min()));
            let inside = self.min().is_none_or(|min| rounded >= min);
            in_range("max_scale", max, inside, &allowed)?;
        }
        self.checked_in_range("init_scale", self.init_scale)?;
        self.schedule.check()?;
        let first = checked_scale("warmup_scale", self.warmup_scale)?;
        let is_above_min = self.warmup_steps == 0 || self.min().is_none_or(|min| first >= min);
        let inside = first.is_normal() && is_above_min;
        let allowed = format!(
            "a normal f32 and at least `min_scale`, {}",
            bound(self.min())
        );
        in_range("warmup_scale", self.warmup_scale, inside, &allowed)?;
        let levels = self.warmup_levels;
        let inside = (1..=126).contains(&levels);
        in_range("warmup_levels", levels.into(), inside, "between 1 and 126")
    }

    /// A scale as an f32, if it is within the bounds. A static scale has none but those that it was made with.
    pub(super) fn checked_in_range(
        &self,
        field: &'static str,
        value: f64,
    ) -> Result<f32, AmpError> {
        let scale = checked_scale(field, value)?;
        let (min, max) = (self.min(), self.max());
        if min.is_some_and(|min| scale < min) || max.is_some_and(|max| scale > max) {
            let (min, max) = (bound(min), bound(max));
            let allowed = format!("between `min_scale` ({min}) and `max_scale` ({max})");
            return Err(AmpError::invalid(field, value, allowed));
        }
        Ok(scale)
    }

    pub(super) fn min(&self) -> Option<f32> {
        self.min_scale.map(|min| min as f32)
    }

    pub(super) fn max(&self) -> Option<f32> {
        self.max_scale.map(|max| max as f32)
    }
}

fn bound(bound: Option<f32>) -> String {
    bound.map_or("none".into(), |bound| short(bound.into()))
}

pub(super) fn checked_scale(field: &'static str, value: f64) -> Result<f32, AmpError> {
    let scale = value as f32;
    // Subnormal scales are allowed, as in PyTorch: their inverse is infinite and every step overflows.
    match scale.is_finite() && scale > 0.0 {
        true => Ok(scale),
        false => {
            let allowed = "positive and finite as an f32";
            Err(AmpError::invalid(field, value, allowed))
        }
    }
}

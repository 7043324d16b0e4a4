//! The settings of a loss scale.

use serde::{Deserialize, Serialize};

use super::schedule::Schedule;
use crate::error::{AmpError, in_range, short};
use crate::settings;

settings! {
    /// The settings of a loss scale and of its `GradScaler`: PyTorch's names and defaults, then more.
    ///
    /// Saved to and loaded from JSON as every Burn [`Config`](burn::config::Config). A setting that the JSON does not name has its default; an unknown
    /// name is an error.
    ///
    /// ```
    /// use burn_amp::{GradScalerConfig, torch::GradScaler};
    ///
    /// let scaler = GradScaler::new(GradScalerConfig::new().with_init_scale(1024.0).with_growth_interval(500))?;
    /// assert_eq!(scaler.loss_scale(), 1024.0);
    ///
    /// let error = GradScaler::new(GradScalerConfig::new().with_backoff_factor(1.5)).unwrap_err();
    /// assert_eq!(error.to_string(), "`backoff_factor` is 1.5, but must be above 0 and below 1");
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    GradScalerConfig:
    /// The loss scale of the first step. Positive; default 65536.
    #[serde(with = "crate::values::number")]
    init_scale, with_init_scale: f64 = 65536.0,
    /// The scale is multiplied by this after `growth_interval` finite steps in a row. Above 1; default 2.
    #[serde(with = "crate::values::number")]
    growth_factor, with_growth_factor: f64 = 2.0,
    /// The scale is multiplied by this after an overflow. Between 0 and 1; default 0.5.
    #[serde(with = "crate::values::number")]
    backoff_factor, with_backoff_factor: f64 = 0.5,
    /// The number of finite steps in a row that make the scale grow. At least 1; default 2000.
    growth_interval, with_growth_interval: u32 = 2000,
    /// Scales, and tests gradients; default true. If not, nothing is scaled and no step is skipped for an overflow. Gradients are measured
    /// only where clipping, hooks or the program ask. DeepSpeed's `check_grad_overflow` in bf16.
    enabled, with_enabled: bool = true,
    /// The scale moves; default true. If not, it stays at `init_scale`, or where `calibrate` or a setter has put it; overflowing steps are still skipped.
    dynamic, with_dynamic: bool = true,
    /// The scale never falls below this; default none. A scaler also stops where the scale would have no inverse in f32.
    #[serde(with = "crate::values::number::optional")]
    min_scale, with_min_scale: Option<f64> = None,
    /// An overflow ends the run where neither the scale nor the factor of the region that overflows can go lower: DeepSpeed's setting of this name, and a check that
    /// Megatron-LM and jmp do not have. If not, the default, the scale stays there, steps are skipped, and
    /// `max_consecutive_skips` ends a run that can only skip.
    raise_error_at_min_scale, with_raise_error_at_min_scale: bool = false,
    /// The scale never grows above this; default none. It never grows to infinity.
    #[serde(with = "crate::values::number::optional")]
    max_scale, with_max_scale: Option<f64> = None,
    /// The number of overflows that it takes to lower the scale: 1, the default, or N, which tolerates N - 1 overflows
    /// first (their steps are still skipped). At least 1.
    hysteresis, with_hysteresis: u32 = 1,
    /// Hysteresis resets at each finite step, as with DeepSpeed's setting of this name and Apex's
    /// `update_scale_hysteresis`. If not, the default, it resets when the scale grows, as in Megatron-LM.
    consecutive_hysteresis, with_consecutive_hysteresis: bool = false,
    /// The number of steps in a row that may be skipped, micro-batches dropped, or windows of finite micro-batches skipped because their
    /// sum overflows: one more ends the run. Losses that are not finite, and steps that hooks reject, have the same limit, each with its own count.
    /// Overflows at scales more than one growth above the last at which gradients were finite (and not all zero) do not count: the scale falls to that
    /// first. None: no limit. Default 50.
    max_consecutive_skips, with_max_consecutive_skips: Option<u32> = Some(50),
    /// The rule that moves the scale; default [`Schedule::GrowthInterval`], PyTorch's.
    schedule, with_schedule: Schedule = Schedule::GrowthInterval,
    /// A rising cap limits the scale for this number of iterations, skipped ones too, whatever the schedule says; default 0: no
    /// warm-up. For networks whose first gradients are far larger than later ones. A static scale has none. At most
    /// (2^32 - 1) / `warmup_levels`.
    warmup_steps, with_warmup_steps: u32 = 0,
    /// The cap of the first iteration. A normal f32, and at least `min_scale`; default 1024.
    #[serde(with = "crate::values::number")]
    warmup_scale, with_warmup_scale: f64 = 1024.0,
    /// The number of equal stages of the warm-up. The cap doubles from each to the next, and is lifted after the last. From 1
    /// to 126; default 6.
    warmup_levels, with_warmup_levels: u32 = 6,
    /// The optimizer gets the gradients of f16 and bf16 parameters in the parameter's dtype; default false: in f32.
    ///
    /// Rounded to nearest after unscaling in f32, which can lose what the loss scale saved from underflow: in f16, unscaled
    /// values below 3e-8 become zero (below 6.1e-5 they lose bits), and values above 65504 become infinite, which counts as
    /// an overflow. PyTorch does this with bf16 parameters, and refuses f16 ones.
    parameter_dtype_gradients, with_parameter_dtype_gradients: bool = false,
}

impl GradScalerConfig {
    pub(super) fn check(&self) -> Result<(), AmpError> {
        checked_scale("init_scale", self.init_scale)?;
        let growth = self.growth_factor;
        let inside = growth.is_finite() && growth > 1.0;
        in_range("growth_factor", growth, inside, "finite and above 1")?;
        let backoff = self.backoff_factor;
        let inside = backoff > 0.0 && backoff < 1.0;
        in_range("backoff_factor", backoff, inside, "above 0 and below 1")?;
        let count = |field, count: u32| in_range(field, count.into(), count > 0, "at least 1");
        count("growth_interval", self.growth_interval)?;
        count("hysteresis", self.hysteresis)?;
        if let Some(min) = self.min_scale {
            checked_scale("min_scale", min)?;
        }
        let at_least_min = format!("at least `min_scale`, {}", bound(self.min_scale));
        let [min, _] = self.bounds();
        if let Some(max) = self.max_scale {
            let inside = checked_scale("max_scale", max)? >= min;
            in_range("max_scale", max, inside, &at_least_min)?;
        }
        self.checked_in_range("init_scale", self.init_scale)?;
        self.schedule.check()?;
        let first = checked_scale("warmup_scale", self.warmup_scale)?;
        let inside = first.is_normal() && (self.warmup_steps == 0 || first >= min);
        let allowed = format!("a normal f32 and {at_least_min}");
        in_range("warmup_scale", self.warmup_scale, inside, &allowed)?;
        let (levels, steps) = (self.warmup_levels, self.warmup_steps);
        let inside = (1..=126).contains(&levels);
        in_range("warmup_levels", levels.into(), inside, "between 1 and 126")?;
        // Their product is counted in 32 bits.
        let most = u32::MAX / levels;
        let allowed = format!("at most {most}, with {levels} parts");
        in_range("warmup_steps", steps.into(), steps <= most, &allowed)
    }

    /// A scale as an f32, if it is within the bounds. A static scale has none but those that it was made with.
    pub(super) fn checked_in_range(
        &self,
        field: &'static str,
        value: f64,
    ) -> Result<f32, AmpError> {
        let scale = checked_scale(field, value)?;
        let [min, max] = self.bounds();
        let (lowest, highest) = (bound(self.min_scale), bound(self.max_scale));
        let allowed = format!("between `min_scale` ({lowest}) and `max_scale` ({highest})");
        in_range(field, value, (min..=max).contains(&scale), &allowed)?;
        Ok(scale)
    }

    /// The lowest and the highest scale; 0 and infinity where none is set.
    pub(super) fn bounds(&self) -> [f32; 2] {
        let [min, max] = [self.min_scale, self.max_scale].map(|bound| bound.map(|b| b as f32));
        [min.unwrap_or(0.0), max.unwrap_or(f32::INFINITY)]
    }
}

fn bound(bound: Option<f64>) -> String {
    bound.map_or("none".into(), |bound| short((bound as f32).into()))
}

pub(super) fn checked_scale(field: &'static str, value: f64) -> Result<f32, AmpError> {
    let scale = value as f32;
    // A subnormal scale may have no inverse in f32; the scale never moves to one.
    let inside = scale.is_finite() && scale > 0.0;
    in_range(field, value, inside, "positive and finite as an f32")?;
    Ok(scale)
}

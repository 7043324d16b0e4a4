use super::{InvalidValue, StepOutcome};
use serde::{Deserialize, Serialize};

/// When the overflows that [`DynamicSettings::hysteresis`] tolerates are granted anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HysteresisRefill {
    /// When the scale grows: Megatron-LM's `DynamicGradScaler`, DeepSpeed without `consecutive_hysteresis`.
    #[default]
    OnGrowth,
    /// At every clean step: Apex's `update_scale_hysteresis` kernel, DeepSpeed's `consecutive_hysteresis`.
    OnCleanStep,
}

/// The settings of a [`DynamicLossScale`]: PyTorch's names and defaults, then more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicSettings {
    /// The scale of the first step. Positive; default 65536.
    pub init_scale: f64,
    /// The scale is multiplied by this after `growth_interval` clean steps in a row. Above 1; default 2.
    pub growth_factor: f64,
    /// The scale is multiplied by this after an overflow. Between 0 and 1; default 0.5.
    pub backoff_factor: f64,
    /// How many clean steps in a row make the scale grow. At least 1; default 2000.
    pub growth_interval: u32,
    /// The scale never falls below this; default none, as in PyTorch, where it can reach zero.
    pub min_scale: Option<f64>,
    /// The scale never grows above this; default none. It never grows to infinity either way.
    pub max_scale: Option<f64>,
    /// The scale backs off at the overflow of this number: 1, the default, at the first; N
    /// tolerates N - 1 overflows before (their steps are skipped all the same).
    pub hysteresis: u32,
    /// When the tolerated overflows are granted anew; default [`HysteresisRefill::OnGrowth`].
    pub hysteresis_refill: HysteresisRefill,
}

impl Default for DynamicSettings {
    fn default() -> Self {
        Self {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            min_scale: None,
            max_scale: None,
            hysteresis: 1,
            hysteresis_refill: HysteresisRefill::OnGrowth,
        }
    }
}

impl DynamicSettings {
    fn validate(&self) -> Result<(), InvalidValue> {
        checked_scale("init_scale", self.init_scale)?;
        checked_growth_factor(self.growth_factor)?;
        checked_backoff_factor(self.backoff_factor)?;
        checked_growth_interval(self.growth_interval)?;
        let min = match self.min_scale {
            Some(min) => Some(checked_scale("min_scale", min)?),
            None => None,
        };
        if let Some(max) = self.max_scale {
            let rounded = checked_scale("max_scale", max)?;
            if let Some(min) = min
                && rounded < min
            {
                let allowed = format!("at least `min_scale`, {min}");
                return Err(InvalidValue::new("max_scale", max, allowed));
            }
        }
        if self.hysteresis == 0 {
            return Err(InvalidValue::new("hysteresis", 0, "at least 1"));
        }
        self.checked_in_range("init_scale", self.init_scale)?;
        Ok(())
    }

    fn checked_in_range(&self, field: &'static str, value: f64) -> Result<f32, InvalidValue> {
        let scale = checked_scale(field, value)?;
        let (min, max) = (self.min(), self.max());
        if min.is_some_and(|min| scale < min) || max.is_some_and(|max| scale > max) {
            let bound = |bound: Option<f32>| bound.map_or("none".into(), |b| b.to_string());
            let allowed = format!(
                "between `min_scale` ({}) and `max_scale` ({})",
                bound(min),
                bound(max)
            );
            return Err(InvalidValue::new(field, value, allowed));
        }
        Ok(scale)
    }

    fn min(&self) -> Option<f32> {
        self.min_scale.map(|min| min as f32)
    }

    fn max(&self) -> Option<f32> {
        self.max_scale.map(|max| max as f32)
    }
}

/// A loss scale that backs off at an overflow and grows after a run of clean steps.
///
/// The transition is PyTorch's `_amp_update_scale_` (products in f64, rounded to f32; a growth to
/// infinity is not made), with Megatron-LM's floor and hysteresis on top. Two departures from PyTorch:
/// the growth tracker is compared with `>=`, so a growth interval lowered below it does not stop growth
/// for ever, and `min_scale` and `max_scale` bound the scale where they are set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawDynamic")]
pub struct DynamicLossScale {
    settings: DynamicSettings,
    scale: f32,
    growth_tracker: u32,
    /// The overflow of this number, counted from now, backs the scale off; never below 1.
    hysteresis_tracker: u32,
}

impl Default for DynamicLossScale {
    fn default() -> Self {
        Self::first(DynamicSettings::default())
    }
}

impl DynamicLossScale {
    /// The schedule at its first step.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] for a growth factor that is not above 1, a backoff factor outside (0, 1), an
    /// interval or a hysteresis of 0, a scale that is not positive and finite as an f32, `max_scale`
    /// below `min_scale`, and an `init_scale` outside them.
    pub fn new(settings: DynamicSettings) -> Result<Self, InvalidValue> {
        settings.validate()?;
        Ok(Self::first(settings))
    }

    pub(super) fn restarted(self) -> Self {
        Self::first(self.settings)
    }

    fn first(settings: DynamicSettings) -> Self {
        Self {
            settings,
            scale: settings.init_scale as f32,
            growth_tracker: 0,
            hysteresis_tracker: settings.hysteresis,
        }
    }

    /// The factor by which the loss is multiplied. Zero is reached only without `min_scale`.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The settings, setters' changes included.
    pub fn settings(&self) -> &DynamicSettings {
        &self.settings
    }

    /// How many clean steps in a row the schedule has seen since it last moved.
    pub fn growth_tracker(&self) -> u32 {
        self.growth_tracker
    }

    /// Which overflow, counted from the next one, makes the scale back off: 1 means the next.
    pub fn hysteresis_tracker(&self) -> u32 {
        self.hysteresis_tracker
    }

    /// The state after one more iteration.
    pub fn adjust(self, outcome: StepOutcome) -> Self {
        match outcome {
            StepOutcome::Applied => self.clean(),
            StepOutcome::Skipped => self.overflow(),
        }
    }

    fn clean(mut self) -> Self {
        self.growth_tracker = self.growth_tracker.saturating_add(1);
        if self.settings.hysteresis_refill == HysteresisRefill::OnCleanStep {
            self.hysteresis_tracker = self.settings.hysteresis;
        }
        // `>=`, where PyTorch has `==`: see the type's documentation.
        if self.growth_tracker >= self.settings.growth_interval {
            self.growth_tracker = 0;
            self.hysteresis_tracker = self.settings.hysteresis;
            self.scale = self.grown();
        }
        self
    }

    fn overflow(mut self) -> Self {
        self.growth_tracker = 0;
        if self.hysteresis_tracker > 1 {
            self.hysteresis_tracker -= 1;
        } else {
            self.scale = self.backed_off();
        }
        self
    }

    fn grown(&self) -> f32 {
        let grown = (f64::from(self.scale) * self.settings.growth_factor) as f32;
        match self.settings.max() {
            Some(max) if grown > max => max,
            _ if grown.is_finite() => grown,
            _ => self.scale,
        }
    }

    fn backed_off(&self) -> f32 {
        let lowered = (f64::from(self.scale) * self.settings.backoff_factor) as f32;
        self.settings.min().map_or(lowered, |min| lowered.max(min))
    }

    /// Whether one more overflow finds no lower scale to go to.
    ///
    /// True at `min_scale`, and without one where the next scale could no longer be inverted in f32
    /// (PyTorch goes on to zero there). Overflows that hysteresis still tolerates come first, as with
    /// DeepSpeed's `raise_error_at_min_scale`.
    pub fn is_at_floor(&self) -> bool {
        if self.hysteresis_tracker > 1 {
            return false;
        }
        let next = self.backed_off();
        next == self.scale || (1.0 / f64::from(next)) as f32 == f32::INFINITY
    }

    pub(super) fn with_scale(mut self, scale: f64) -> Result<Self, InvalidValue> {
        self.scale = self.settings.checked_in_range("loss_scale", scale)?;
        Ok(self)
    }

    pub(super) fn with_growth_factor(mut self, factor: f64) -> Result<Self, InvalidValue> {
        self.settings.growth_factor = checked_growth_factor(factor)?;
        Ok(self)
    }

    pub(super) fn with_backoff_factor(mut self, factor: f64) -> Result<Self, InvalidValue> {
        self.settings.backoff_factor = checked_backoff_factor(factor)?;
        Ok(self)
    }

    pub(super) fn with_growth_interval(mut self, interval: u32) -> Result<Self, InvalidValue> {
        self.settings.growth_interval = checked_growth_interval(interval)?;
        Ok(self)
    }

    pub(super) fn with_growth_tracker(mut self, tracker: u32) -> Result<Self, InvalidValue> {
        let interval = self.settings.growth_interval;
        if tracker >= interval {
            let allowed = format!("below `growth_interval`, {interval}");
            return Err(InvalidValue::new("growth_tracker", tracker, allowed));
        }
        self.growth_tracker = tracker;
        Ok(self)
    }

    /// Scale and tracker from elsewhere; PyTorch allows a tracker beyond the interval.
    pub(crate) fn restored(mut self, scale: f64, tracker: u32) -> Result<Self, InvalidValue> {
        self.scale = self.settings.checked_in_range("scale", scale)?;
        self.growth_tracker = tracker;
        Ok(self)
    }
}

pub(super) fn checked_scale(field: &'static str, value: f64) -> Result<f32, InvalidValue> {
    let scale = value as f32;
    // Subnormal scales are allowed, as in PyTorch: their inverse is infinite, every step overflows, and the run ends.
    if scale.is_finite() && scale > 0.0 {
        Ok(scale)
    } else {
        let allowed = "positive and finite as an f32";
        Err(InvalidValue::new(field, value, allowed))
    }
}

fn checked_growth_factor(factor: f64) -> Result<f64, InvalidValue> {
    if factor.is_finite() && factor > 1.0 {
        Ok(factor)
    } else {
        let allowed = "finite and above 1";
        Err(InvalidValue::new("growth_factor", factor, allowed))
    }
}

fn checked_backoff_factor(factor: f64) -> Result<f64, InvalidValue> {
    if factor > 0.0 && factor < 1.0 {
        Ok(factor)
    } else {
        let allowed = "above 0 and below 1";
        Err(InvalidValue::new("backoff_factor", factor, allowed))
    }
}

fn checked_growth_interval(interval: u32) -> Result<u32, InvalidValue> {
    if interval > 0 {
        Ok(interval)
    } else {
        Err(InvalidValue::new("growth_interval", 0, "at least 1"))
    }
}

/// A stored state before its checks: what serde reads must be as valid as what is built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDynamic {
    settings: DynamicSettings,
    scale: f32,
    growth_tracker: u32,
    hysteresis_tracker: u32,
}

impl TryFrom<RawDynamic> for DynamicLossScale {
    type Error = InvalidValue;

    fn try_from(raw: RawDynamic) -> Result<Self, Self::Error> {
        raw.settings.validate()?;
        // Zero is a state that the schedule itself reaches without `min_scale`.
        if raw.scale.to_bits() != 0 || raw.settings.min_scale.is_some() {
            raw.settings.checked_in_range("scale", raw.scale.into())?;
        }
        let hysteresis = raw.settings.hysteresis;
        if !(1..=hysteresis).contains(&raw.hysteresis_tracker) {
            return Err(InvalidValue::new(
                "hysteresis_tracker",
                raw.hysteresis_tracker,
                format!("between 1 and `hysteresis`, {hysteresis}"),
            ));
        }
        Ok(Self {
            settings: raw.settings,
            scale: raw.scale,
            growth_tracker: raw.growth_tracker,
            hysteresis_tracker: raw.hysteresis_tracker,
        })
    }
}

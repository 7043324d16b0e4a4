//! The schedule of the loss scale, as a pure value: no tensors, no device, no clock.

use burn::config::{Config, config_to_json};
use serde::{Deserialize, Serialize};

use crate::error::{AmpError, short};

/// What became of one call of `step`, `accumulate`, `flush`, `observe` or `discard`.
///
/// A host value: reading it never waits for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StepOutcome {
    /// All gradients were finite and the optimizer was called.
    Stepped,
    /// A gradient held an infinity or a NaN. Parameters and optimizer state are untouched.
    Skipped,
    /// The gradients went into an accumulation window, which is not full yet.
    Accumulated,
    /// The gradients were thrown away: an overflowing micro-batch, or a call of `discard`.
    Dropped,
    /// There was nothing to step with: no parameter had a gradient, or the window was empty.
    NoGradients,
}

impl StepOutcome {
    /// Whether the optimizer was called.
    pub fn is_stepped(self) -> bool {
        self == Self::Stepped
    }

    /// Whether an overflow made the step a no-op.
    pub fn is_skipped(self) -> bool {
        self == Self::Skipped
    }
}

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
        with_parameter_dtype_gradients parameter_dtype_gradients: bool,
    }

    /// Checks the settings and builds the schedule at its first step. Those of a static scale are checked too.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range: a growth factor that is not above 1,
    /// a backoff factor outside (0, 1), an interval or a hysteresis of 0, a scale that is not positive and finite as an f32,
    /// `max_scale` below `min_scale`, an `init_scale` outside them.
    pub fn schedule(&self) -> Result<LossScale, AmpError> {
        self.check()?;
        Ok(LossScale::first(*self))
    }

    fn check(&self) -> Result<(), AmpError> {
        checked_scale("init_scale", self.init_scale)?;
        let range = |field, value: f64, inside: bool, allowed: &str| match inside {
            true => Ok(()),
            false => Err(AmpError::invalid(field, value, allowed)),
        };
        let growth = self.growth_factor;
        let inside = growth.is_finite() && growth > 1.0;
        range("growth_factor", growth, inside, "finite and above 1")?;
        let backoff = self.backoff_factor;
        let inside = backoff > 0.0 && backoff < 1.0;
        range("backoff_factor", backoff, inside, "above 0 and below 1")?;
        let counts = [
            ("growth_interval", self.growth_interval),
            ("hysteresis", self.hysteresis),
        ];
        for (field, count) in counts {
            range(field, count.into(), count > 0, "at least 1")?;
        }
        if let Some(min) = self.min_scale {
            checked_scale("min_scale", min)?;
        }
        if let Some(max) = self.max_scale {
            let rounded = checked_scale("max_scale", max)?;
            let allowed = format!("at least `min_scale`, {}", bound(self.min()));
            let inside = self.min().is_none_or(|min| rounded >= min);
            range("max_scale", max, inside, &allowed)?;
        }
        self.checked_in_range("init_scale", self.init_scale)?;
        Ok(())
    }

    /// A scale as an f32, if it is within the bounds. A static scale has none but those that it was made with.
    fn checked_in_range(&self, field: &'static str, value: f64) -> Result<f32, AmpError> {
        let scale = checked_scale(field, value)?;
        let (min, max) = (self.min(), self.max());
        if min.is_some_and(|min| scale < min) || max.is_some_and(|max| scale > max) {
            let (min, max) = (bound(min), bound(max));
            let allowed = format!("between `min_scale` ({min}) and `max_scale` ({max})");
            return Err(AmpError::invalid(field, value, allowed));
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

fn bound(bound: Option<f32>) -> String {
    bound.map_or("none".into(), |bound| short(bound.into()))
}

fn checked_scale(field: &'static str, value: f64) -> Result<f32, AmpError> {
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

/// The state of a loss-scale schedule: its settings, the scale and two counts. Cloned, compared and stored by value.
///
/// [`adjust`](Self::adjust) takes it and the [`StepOutcome`] of one iteration to the next state, always the same for the same
/// input. So a schedule can be replayed, tested without tensors and stored. Made by [`GradScalerConfig::schedule`].
///
/// The transition is PyTorch's `_amp_update_scale_` (products in f64, rounded to f32; a growth to infinity is not made), with
/// Megatron-LM's floor and hysteresis on top. The idea of a loss scale as a value with an `adjust` of its own is that of
/// DeepMind's `jmp`. Departures from PyTorch: the growth tracker is compared with `>=`, so that a growth interval lowered below
/// it does not stop growth for ever; and `min_scale` and `max_scale` bound the scale where they are set. As PyTorch's, the scale can
/// reach zero; that of a [`GradScaler`](crate::GradScaler) or a [`MixedPrecision`](crate::MixedPrecision) stops before, where f32 has no inverse.
///
/// ```
/// use burn_amp::{GradScalerConfig, StepOutcome};
///
/// let mut scale = GradScalerConfig::new().with_growth_interval(2).schedule()?;
/// assert_eq!(scale.scale(), 65536.0);
///
/// // An overflow halves the scale; two clean steps in a row double it.
/// scale = scale.adjust(StepOutcome::Skipped);
/// assert_eq!(scale.scale(), 32768.0);
/// scale = scale.adjust(StepOutcome::Stepped).adjust(StepOutcome::Stepped);
/// assert_eq!(scale.scale(), 65536.0);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct LossScale {
    config: GradScalerConfig,
    scale: f32,
    growth_tracker: u32,
    /// The overflow of this number, counted from now, backs the scale off; never below 1.
    hysteresis_tracker: u32,
}

/// PyTorch's: a dynamic schedule with the default settings.
impl Default for LossScale {
    fn default() -> Self {
        Self::first(GradScalerConfig::default())
    }
}

impl LossScale {
    fn first(config: GradScalerConfig) -> Self {
        Self {
            config,
            scale: config.init_scale as f32,
            growth_tracker: 0,
            hysteresis_tracker: config.hysteresis,
        }
    }

    /// The factor by which the loss of the next step is multiplied.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The settings, those changed since included.
    pub fn config(&self) -> &GradScalerConfig {
        &self.config
    }

    /// How many clean steps in a row the schedule has seen since it last moved; 0 for a static scale.
    pub fn growth_tracker(&self) -> u32 {
        self.growth_tracker
    }

    /// Which overflow, counted from the next one, makes the scale back off: 1 means the next.
    pub fn hysteresis_tracker(&self) -> u32 {
        self.hysteresis_tracker
    }

    /// The state after one more iteration with this outcome: a deterministic function of both.
    ///
    /// [`Stepped`](StepOutcome::Stepped) counts as clean, [`Skipped`](StepOutcome::Skipped) and
    /// [`Dropped`](StepOutcome::Dropped) as an overflow; the others change nothing. A static scale never changes. Never fails
    /// and never yields a scale that is negative or not finite.
    #[must_use]
    pub fn adjust(mut self, outcome: StepOutcome) -> Self {
        match outcome {
            _ if !self.config.dynamic => {}
            StepOutcome::Stepped => self.clean(),
            StepOutcome::Skipped | StepOutcome::Dropped => self.overflow(),
            StepOutcome::Accumulated | StepOutcome::NoGradients => {}
        }
        self
    }

    fn clean(&mut self) {
        self.growth_tracker = self.growth_tracker.saturating_add(1);
        if self.config.consecutive_hysteresis {
            self.hysteresis_tracker = self.config.hysteresis;
        }
        // `>=`, where PyTorch has `==`: see the type's documentation.
        if self.growth_tracker >= self.config.growth_interval {
            self.growth_tracker = 0;
            self.hysteresis_tracker = self.config.hysteresis;
            self.scale = self.grown();
        }
    }

    fn overflow(&mut self) {
        self.growth_tracker = 0;
        if self.hysteresis_tracker > 1 {
            self.hysteresis_tracker -= 1;
        } else {
            self.scale = self.backed_off();
        }
    }

    fn grown(&self) -> f32 {
        let grown = (f64::from(self.scale) * self.config.growth_factor) as f32;
        match self.config.max() {
            Some(max) if grown > max => max,
            _ if grown.is_finite() => grown,
            _ => self.scale,
        }
    }

    /// As [`adjust`](Self::adjust), for a scale that is applied: where it would have no inverse in f32, it stays. At zero every
    /// gradient would be zero or NaN, for good.
    pub(crate) fn learn(self, outcome: StepOutcome) -> Self {
        let next = self.adjust(outcome);
        match has_inverse(next.scale) {
            true => next,
            false => Self {
                scale: self.scale,
                ..next
            },
        }
    }

    fn backed_off(&self) -> f32 {
        let lowered = (f64::from(self.scale) * self.config.backoff_factor) as f32;
        self.config.min().map_or(lowered, |min| lowered.max(min))
    }

    /// Whether one more overflow finds no lower scale to go to.
    ///
    /// True at `min_scale`, and without one where the next scale could no longer be inverted in f32. Overflows that hysteresis
    /// still tolerates come first. Always false for a static scale.
    pub fn is_at_floor(&self) -> bool {
        let tolerated = self.hysteresis_tracker > 1;
        let next = self.backed_off();
        self.config.dynamic && !tolerated && (next == self.scale || !has_inverse(next))
    }

    /// The same settings at the first step. A static scale stays where it was set.
    #[must_use]
    pub(crate) fn restarted(self) -> Self {
        match self.config.dynamic {
            true => Self::first(self.config),
            false => self,
        }
    }

    /// Other settings, refused as [`GradScalerConfig::schedule`] refuses them, and those of the growth for a static scale.
    pub(crate) fn with_setting(
        mut self,
        field: &'static str,
        value: f64,
        change: impl FnOnce(&mut GradScalerConfig),
    ) -> Result<Self, AmpError> {
        self.check_dynamic(field, value)?;
        change(&mut self.config);
        self.config.check()?;
        Ok(self)
    }

    /// The same state with another scale; trackers stay, as in PyTorch's `update(new_scale)`.
    pub(crate) fn with_scale(mut self, field: &'static str, scale: f64) -> Result<Self, AmpError> {
        self.scale = match self.config.dynamic {
            true => self.config.checked_in_range(field, scale)?,
            false => checked_scale(field, scale)?,
        };
        Ok(self)
    }

    /// The same state with another count of clean steps in a row.
    pub(crate) fn with_growth_tracker(mut self, tracker: u32) -> Result<Self, AmpError> {
        self.check_dynamic("growth_tracker", tracker.into())?;
        let interval = self.config.growth_interval;
        if tracker >= interval {
            let allowed = format!("below `growth_interval`, {interval}");
            return Err(AmpError::invalid("growth_tracker", tracker, allowed));
        }
        self.growth_tracker = tracker;
        Ok(self)
    }

    /// PyTorch's five values; it allows a tracker beyond the interval. A static scale takes the scale alone.
    pub(crate) fn restored(
        mut self,
        [scale, growth_factor, backoff_factor]: [f64; 3],
        [growth_interval, growth_tracker]: [u32; 2],
    ) -> Result<Self, AmpError> {
        if self.config.dynamic {
            self.config = GradScalerConfig {
                growth_factor,
                backoff_factor,
                growth_interval,
                ..self.config
            };
            self.config.check()?;
            self.growth_tracker = growth_tracker;
            self.hysteresis_tracker = self.config.hysteresis;
        }
        self.with_scale("scale", scale)
    }

    /// These settings with the scale and the counts of another state. A scale outside the bounds is moved to the nearest; a
    /// static scale that was given another `init_scale` keeps that.
    pub(crate) fn continuing(mut self, other: &Self) -> Self {
        let config = &self.config;
        let same =
            |other: &GradScalerConfig| !other.dynamic && other.init_scale == config.init_scale;
        if config.dynamic {
            self.scale = other.scale;
            if let Some(min) = config.min() {
                self.scale = self.scale.max(min);
            }
            if let Some(max) = config.max() {
                self.scale = self.scale.min(max);
            }
            self.growth_tracker = other.growth_tracker;
            // As many of the tolerated overflows are used up.
            let used = other.config.hysteresis - other.hysteresis_tracker;
            self.hysteresis_tracker = config.hysteresis.saturating_sub(used).max(1);
        } else if same(&other.config) {
            self.scale = other.scale;
        }
        self
    }

    /// With the present settings of what is no part of a schedule.
    pub(crate) fn in_program(mut self, config: &GradScalerConfig) -> Self {
        self.config.enabled = config.enabled;
        self.config.max_consecutive_skips = config.max_consecutive_skips;
        self.config.parameter_dtype_gradients = config.parameter_dtype_gradients;
        self
    }

    fn check_dynamic(&self, field: &'static str, value: f64) -> Result<(), AmpError> {
        match self.config.dynamic {
            true => Ok(()),
            false => {
                let allowed = "left alone: the loss scale is static";
                Err(AmpError::invalid(field, value, allowed))
            }
        }
    }
}

/// Whether gradients can be divided by this scale in f32.
fn has_inverse(scale: f32) -> bool {
    (1.0 / f64::from(scale)) as f32 != f32::INFINITY
}

/// A stored state before its checks: what serde reads must be as valid as what is built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    config: GradScalerConfig,
    scale: f32,
    growth_tracker: u32,
    hysteresis_tracker: u32,
}

impl TryFrom<Stored> for LossScale {
    type Error = AmpError;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let schedule = stored.config.schedule()?;
        // Zero is a state that a schedule reaches without `min_scale`.
        if stored.scale.to_bits() != 0 || stored.config.min_scale.is_some() {
            schedule.with_scale("scale", stored.scale.into())?;
        }
        let hysteresis = stored.config.hysteresis;
        if !(1..=hysteresis).contains(&stored.hysteresis_tracker) {
            let allowed = format!("between 1 and `hysteresis`, {hysteresis}");
            let tracker = stored.hysteresis_tracker;
            return Err(AmpError::invalid("hysteresis_tracker", tracker, allowed));
        }
        Ok(Self {
            scale: stored.scale,
            growth_tracker: stored.growth_tracker,
            hysteresis_tracker: stored.hysteresis_tracker,
            ..schedule
        })
    }
}

//! The schedule of the loss scale, as a pure value: no tensors, no device, no clock.

use burn_amp_kernels::ScaleState;
use serde::{Deserialize, Serialize};

mod config;
mod device;
mod log_max;
mod memory;
mod near_top;
mod outcome;
mod own_rule;
mod rule;
mod schedule;
mod stored;

pub use config::GradScalerConfig;
pub(crate) use outcome::SkipCause;
pub use outcome::{Measures, StepOutcome};
pub use rule::{Evidence, NextScale, Observation, Rule};
pub use schedule::Schedule;

use crate::error::{AmpError, in_range};
use crate::values::number;
use config::checked_scale;
pub(crate) use config::settings;
use memory::Memory;
use own_rule::OwnRule;
use stored::Stored;

/// The largest finite f16.
const F16_MAX: f64 = 65504.0;

impl GradScalerConfig {
    /// Checks the settings and builds the schedule at its first step. Those of a static scale are checked too. Where
    /// [`enabled`](Self::enabled) is false nothing is refused, as in PyTorch: defaults take the place of settings that are out of range.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range: a growth factor that is not above 1,
    /// a backoff factor outside (0, 1), an interval or a hysteresis of 0, a scale that is not positive and finite as an f32,
    /// `max_scale` below `min_scale`, an `init_scale` outside them, a parameter of [`Schedule`] or of the warm-up outside its range.
    pub fn schedule(&self) -> Result<LossScale, AmpError> {
        match self.check() {
            Err(_) if !self.enabled => Ok(LossScale::default().in_program(self)),
            checked => checked.map(|()| LossScale::first(*self)),
        }
    }
}

/// The state of a loss-scale schedule: its settings, the scale, and what its [`Schedule`] remembers. Cloned, compared and stored by
/// value.
///
/// [`adjust`](Self::adjust) takes it and what one iteration has shown to the next state, always the same for the same
/// input. So a schedule can be replayed, tested without tensors and stored. Made by [`GradScalerConfig::schedule`].
///
/// The transition of the default schedule is PyTorch's `_amp_update_scale_` (products in f64, rounded to f32; a growth to infinity is not made), with
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
/// // An overflow halves the scale; two finite steps in a row double it.
/// scale = scale.adjust(StepOutcome::Skipped);
/// assert_eq!(scale.scale(), 32768.0);
/// scale = scale.adjust(StepOutcome::Stepped).adjust(StepOutcome::Stepped);
/// assert_eq!(scale.scale(), 65536.0);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// Schedules that look at the gradients take their measures beside the outcome:
///
/// ```
/// use burn_amp::{GradScalerConfig, gradients::GradientStatus, schedule::Schedule, StepOutcome};
///
/// let mut scale = GradScalerConfig::new().with_schedule(Schedule::log_max()).schedule()?;
/// let status = GradientStatus::default().with_max_abs(0.25);
/// for _ in 0..10 {
///     scale = scale.adjust((StepOutcome::Stepped, &status));
/// }
/// assert_eq!(scale.scale(), 131072.0); // f16 holds 0.25 * 131072, and not twice that
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct LossScale {
    config: GradScalerConfig,
    /// As the schedule has it: a warm-up may hold down what is used.
    #[serde(serialize_with = "number::single::serialize")]
    scale: f32,
    growth_tracker: u32,
    /// The overflow of this number, counted from now, backs the scale off; never below 1.
    hysteresis_tracker: u32,
    // These are absent from records where they say nothing.
    #[serde(skip_serializing_if = "Memory::is_nothing")]
    state: Memory,
    /// Where the last overflow has backed off to: schedules that look at the gradients do not rise above.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<f32>,
    /// Iterations of the warm-up so far.
    #[serde(skip_serializing_if = "number::is_default")]
    warmup_step: u32,
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
            state: Memory::first(&config),
            ceiling: None,
            warmup_step: 0,
        }
    }

    /// The factor by which the loss of the next step is multiplied.
    pub fn scale(&self) -> f32 {
        // Without a warm-up nothing holds it down.
        match self.config.warmup_steps == 0 || self.scale.is_nan() {
            true => self.scale,
            false => self.words().capped(),
        }
    }

    /// How many finite steps in a row make the scale grow at present: the setting, or what
    /// [`Schedule::AdaptiveInterval`] has made of it.
    pub fn growth_interval(&self) -> u32 {
        let adaptive = self.state.interval();
        adaptive.map_or(self.config.growth_interval, |state| state.interval)
    }

    /// From which magnitude on unscaled gradients are to be counted, if the rule wants to know.
    pub(crate) fn edge(&self) -> Option<f32> {
        let edge =
            f64::from(self.state.count_from(&self.config.schedule)?) / f64::from(self.scale());
        self.config.dynamic.then_some(edge as f32)
    }

    /// Whether the rule wants values near the top to be counted.
    pub(crate) fn counts_near_top(&self) -> bool {
        self.state.count_from(&self.config.schedule).is_some()
    }

    /// Whether the schedule looks at more than outcomes.
    pub(crate) fn needs_measures(&self) -> bool {
        !self.state.is_counted()
    }

    /// The settings, those changed since included.
    pub fn config(&self) -> &GradScalerConfig {
        &self.config
    }

    /// How many finite steps in a row the schedule has seen since it last moved; 0 for a static scale.
    pub fn growth_tracker(&self) -> u32 {
        self.growth_tracker
    }

    /// Overflows left until the scale backs off: 1 means that the next one lowers it.
    pub fn hysteresis_tracker(&self) -> u32 {
        self.hysteresis_tracker
    }

    /// The state after one more iteration: a deterministic function of this state and of what the iteration has shown.
    ///
    /// Takes a [`StepOutcome`], or that and the [`GradientStatus`](crate::GradientStatus) of the gradients: `(outcome, &status)`.
    /// Without a status, a finite step leaves the scale as it is under schedules that look at the gradients; counts and a warm-up go on. Gradients that
    /// are all zero let no scale rise, and count for nothing, but under PyTorch's schedule and OpenSeq2Seq's.
    ///
    /// [`Stepped`](StepOutcome::Stepped) counts as finite, [`Skipped`](StepOutcome::Skipped) and
    /// [`Dropped`](StepOutcome::Dropped) as an overflow; the others change nothing. A static scale never changes. Never fails
    /// and never yields a scale that is negative or not finite, but for [`Schedule::OpenSeq2SeqLogMax`] and a
    /// rule of your own that asks for one.
    #[must_use]
    pub fn adjust(mut self, seen: impl Into<Observation>) -> Self {
        let Some(seen) = seen.into().0.filter(|_| self.config.dynamic) else {
            return self;
        };
        let overflow = seen == Evidence::Overflow;
        let is_evidence = !seen.is_all_zero() || self.counts_zeros();
        let mut counts = self.words();
        let is_due = is_evidence && counts.count(overflow);
        if is_due && !overflow {
            self.lift_ceiling();
        }
        let (before, used) = (self.scale, self.scale());
        let next = self.state.advance(&self.config.schedule, used, seen);
        self.scale = match next {
            NextScale::Counted if is_due && !overflow => self.grown(before),
            NextScale::Counted if is_due => self.backed_off(),
            NextScale::Counted | NextScale::Same => before,
            NextScale::Lower => self.backed_off(),
            NextScale::UpTo(scale) if !scale.is_nan() => {
                self.below_ceiling(scale.min(self.grown(used)))
            }
            NextScale::AtOnce(scale) if !scale.is_nan() => self.below_ceiling(scale),
            NextScale::UpTo(scale) | NextScale::AtOnce(scale) | NextScale::Exactly(scale) => {
                self.clamped(scale)
            }
        };
        if !is_evidence {
            self.scale = self.scale.min(before);
        }
        match next {
            NextScale::Counted if overflow && is_due && !self.state.is_counted() => {
                self.ceiling = Some(self.scale);
            }
            // None is tolerated.
            NextScale::Exactly(_) if overflow => {
                counts.hysteresis_tracker = self.hysteresis_tracker;
            }
            _ if !overflow && self.scale > before => counts.count_growth(),
            _ => {}
        }
        self.counted(&counts)
    }

    /// Whether gradients that are all zero count as any that are finite: as in PyTorch, and in OpenSeq2Seq.
    fn counts_zeros(&self) -> bool {
        let schedule = self.config.schedule;
        let is_original = matches!(schedule, Schedule::OpenSeq2SeqLogMax { .. });
        self.state.is_nothing() || (is_original && !self.has_own_rule())
    }

    fn counted(mut self, counts: &ScaleState) -> Self {
        self.growth_tracker = counts.growth_tracker;
        self.hysteresis_tracker = counts.hysteresis_tracker;
        self.warmup_step = counts.warmup_step;
        if let Memory::AdaptiveInterval(state) = &mut self.state {
            state.interval = counts.growth_interval;
            state.growths_in_a_row = counts.growths_in_a_row;
        }
        self
    }

    fn grown(&self, from: f32) -> f32 {
        let grown = (f64::from(from) * self.config.growth_factor) as f32;
        let [_, max] = self.config.bounds();
        match grown.min(max) {
            grown if grown.is_finite() => grown,
            _ => from,
        }
    }

    fn backed_off(&self) -> f32 {
        let lowered = (f64::from(self.scale()) * self.config.backoff_factor) as f32;
        let [min, _] = self.config.bounds();
        lowered.max(min)
    }

    /// Within the bounds. NaN stays.
    pub(crate) fn clamped(&self, scale: f32) -> f32 {
        let [min, max] = self.config.bounds();
        scale.clamp(min, max)
    }

    fn below_ceiling(&self, scale: f32) -> f32 {
        self.clamped(self.ceiling.map_or(scale, |ceiling| scale.min(ceiling)))
    }

    fn lift_ceiling(&mut self) {
        let lifted = |ceiling| (f64::from(ceiling) * self.config.growth_factor) as f32;
        self.ceiling = self.ceiling.map(lifted).filter(|c| c.is_finite());
    }

    /// As [`adjust`](Self::adjust), for a scale that is applied: where it would have no inverse in f32, it stays, also below the
    /// cap of a warm-up, and so does what its rule remembers. At zero every gradient would be zero or NaN, and a rule that has come to a scale
    /// that is NaN may never leave it. The log says it of a rule that is not one of the settings'.
    pub(crate) fn advance(self, seen: impl Into<Observation>) -> Self {
        let (scale, before) = (self.scale, self.state.clone());
        let mut next = self.adjust(seen);
        if !has_inverse(next.scale) {
            if next.has_own_rule() {
                let (rule, refused) = (next.rule_name(), next.scale);
                warn!(
                    "the rule `{rule}` asks for the scale {refused:e}, which cannot be applied: it stays at {scale:e}"
                );
            }
            next.scale = scale;
            if !before.is_counted() {
                next.state = before;
            }
        }
        next
    }

    /// Whether one more overflow finds no lower scale to go to.
    ///
    /// True at `min_scale`, and without one where the next scale could no longer be inverted in f32. Overflows that hysteresis
    /// still tolerates come first. Always false for a static scale.
    pub fn is_at_floor(&self) -> bool {
        let tolerated = self.hysteresis_tracker > 1;
        let next = self.clone().adjust(StepOutcome::Skipped).scale();
        self.config.dynamic && !tolerated && (next >= self.scale() || !has_inverse(next))
    }

    /// The same settings and the same rule at the first step. A static scale stays where it was set.
    #[must_use]
    pub(crate) fn restarted(self) -> Self {
        match self.config.dynamic {
            true => Self {
                state: self.state.restarted(&self.config),
                ..Self::first(self.config)
            },
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
        let interval = self.config.growth_interval;
        change(&mut self.config);
        self.config.check()?;
        if self.config.growth_interval != interval {
            self.restart_interval();
        }
        Ok(self)
    }

    /// Begins again at the interval of the settings.
    fn restart_interval(&mut self) {
        if self.state.interval().is_some() {
            self.state = Memory::first(&self.config);
        }
    }

    /// The same state with another scale; trackers stay, as in PyTorch's `update(new_scale)`. A warm-up goes on.
    #[doc(hidden)]
    pub fn with_scale(mut self, field: &'static str, scale: f64) -> Result<Self, AmpError> {
        self.scale = match self.config.dynamic {
            true => self.config.checked_in_range(field, scale)?,
            false => checked_scale(field, scale)?,
        };
        self.ceiling = self.ceiling.filter(|ceiling| *ceiling >= self.scale);
        Ok(self)
    }

    /// The same state with another count of finite steps in a row.
    pub(crate) fn with_growth_tracker(mut self, tracker: u32) -> Result<Self, AmpError> {
        let (field, value) = ("growth_tracker", tracker.into());
        self.check_dynamic(field, value)?;
        let interval = self.growth_interval();
        let allowed = format!("below `growth_interval`, {interval}");
        in_range(field, value, tracker < interval, &allowed)?;
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
            self.restart_interval();
            self.growth_tracker = growth_tracker;
            self.hysteresis_tracker = self.config.hysteresis;
        }
        self.with_scale("scale", scale)
    }

    /// Whether nothing is multiplied by it: where nothing is scaled, and in bf16, where it stays at 1. It has no state then.
    pub(crate) fn is_idle(&self) -> bool {
        !self.config.enabled || (!self.config.dynamic && self.scale == 1.0)
    }

    /// What this program makes of a stored state: with the settings of that, or with its own. An idle one has nothing to go on with. The error
    /// says why its rule refuses it.
    pub(crate) fn resumed(self, stored: &Self, with_settings: bool) -> Result<Self, String> {
        if !with_settings {
            let starts = !self.config.enabled || (self.config.dynamic && stored.is_idle());
            return match starts {
                true => Ok(self.restarted()),
                false => self.continuing(stored),
            };
        }
        let mut stored = stored.clone();
        stored.config.enabled = self.config.enabled;
        stored.with_rule_of(&self)
    }

    /// These settings and this rule with the scale and the counts of another state. What the rule remembers is that of the other if it is of
    /// the same rule, and else starts again. The error says why the rule refuses it.
    /// A scale outside the bounds is moved to the nearest; a static scale that was given another `init_scale` keeps that.
    fn continuing(mut self, other: &Self) -> Result<Self, String> {
        let config = &self.config;
        let same =
            |other: &GradScalerConfig| !other.dynamic && other.init_scale == config.init_scale;
        if config.dynamic {
            self.scale = match other.scale.is_finite() {
                true => self.clamped(other.scale),
                false => self.scale,
            };
            self.warmup_step = other.warmup_step.min(config.warmup_steps);
            self.growth_tracker = other.growth_tracker;
            // As many of the tolerated overflows are used up.
            let used = other.config.hysteresis - other.hysteresis_tracker;
            self.hysteresis_tracker = config.hysteresis.saturating_sub(used).max(1);
            self = self.with_state_of(other)?;
        } else if same(&other.config) {
            self.scale = other.scale;
        }
        Ok(self)
    }

    /// With what the rule remembers in another state. The error says why the rule refuses it.
    fn with_state_of(mut self, other: &Self) -> Result<Self, String> {
        (self.state, self.ceiling) = match self.state.continuing(&other.state)? {
            Some(state) => (state, other.ceiling),
            None => (self.state.restarted(&self.config), None),
        };
        Ok(self)
    }

    /// This stored state with all its settings, under the rule of a program where that is its own or the only one to be had.
    fn with_rule_of(self, program: &Self) -> Result<Self, String> {
        let rule = match program.has_own_rule() {
            true => program.state.restarted(&program.config),
            false if self.has_own_rule() => Memory::first(&self.config),
            false => return Ok(self),
        };
        self.under(rule)
    }

    /// The same state under a rule, which goes on with what is remembered if that is its own.
    fn under(mut self, rule: Memory) -> Result<Self, String> {
        let before = self.clone();
        self.state = rule;
        self.with_state_of(&before)
    }

    /// The same scale moved by a rule of your own, in place of the one in the settings. Bounds, factors, hysteresis, warm-up and counts are
    /// those of the settings.
    ///
    /// A state under a rule of this name, such as one that was read from JSON, goes on with what that remembers. Any other rule is replaced, and
    /// this one begins as it is given. [`GradScaler::reset`](crate::GradScaler::reset) brings it back to that.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the name is empty or that of a built-in rule, or if the rule refuses the stored state.
    pub fn with_rule<R: Rule + Clone>(self, rule: R) -> Result<Self, AmpError> {
        let name = rule.name();
        if name.is_empty() || Memory::is_built_in(name) {
            let allowed = "a name of its own, which no built-in rule has";
            return Err(AmpError::refused("name", format!("`{name}`"), allowed));
        }
        self.under(Memory::Own(OwnRule::new(rule)))
            .map_err(|reason| AmpError::refused("state", reason, "one that the rule can have"))
    }

    /// The rule that moves it, by name: one of [`Schedule`]'s or your own.
    pub fn rule_name(&self) -> &str {
        self.state.name()
    }

    /// Whether it is moved by a rule that is not one of the settings'.
    pub(crate) fn has_own_rule(&self) -> bool {
        self.state.is_own()
    }

    /// Refuses a stored state whose rule is missing.
    pub(crate) fn check_rule(self) -> Result<Self, AmpError> {
        if !self.state.is_unknown() {
            return Ok(self);
        }
        let value = format!("stored under the rule `{}`", self.rule_name());
        let allowed = "given that rule, by `LossScale::with_rule`";
        Err(AmpError::refused("schedule", value, allowed))
    }

    /// Whether settings and rule are those of another, whatever both have reached.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.config == other.config && self.rule_name() == other.rule_name()
    }

    /// With the present settings of what is no part of a schedule.
    pub(crate) fn in_program(mut self, config: &GradScalerConfig) -> Self {
        self.config.enabled = config.enabled;
        self.config.max_consecutive_skips = config.max_consecutive_skips;
        self.config.parameter_dtype_gradients = config.parameter_dtype_gradients;
        self
    }

    fn check_dynamic(&self, field: &'static str, value: f64) -> Result<(), AmpError> {
        let allowed = "left alone: the loss scale is static";
        in_range(field, value, self.config.dynamic, allowed)
    }
}

/// Whether gradients can be divided by this scale in f32.
fn has_inverse(scale: f32) -> bool {
    scale.is_finite() && (1.0 / f64::from(scale)) as f32 != f32::INFINITY
}

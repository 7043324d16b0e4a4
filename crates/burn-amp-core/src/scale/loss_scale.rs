//! The schedule of the loss scale, as a pure value: no tensors, no device, no clock.

use burn_amp_kernels::ScaleState;
use serde::{Deserialize, Serialize};

mod adaptive_interval;
mod config;
mod log_max;
mod memory;
mod near_top;
mod outcome;
mod own_rule;
mod rule;
mod schedule;
mod state;
mod stored;

pub use adaptive_interval::AdaptiveInterval;
pub use config::GradScalerConfig;
pub use log_max::LogMax;
pub use near_top::NearTop;
pub use outcome::StepOutcome;
pub use rule::{Evidence, Measures, NextScale, Rule};
pub use schedule::Schedule;

use crate::error::{AmpError, in_range};
use crate::lock::quietly;
use config::checked_scale;
use memory::Memory;
use own_rule::OwnRule;
use state::first_state;
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
            // What is no part of a schedule stays.
            Err(_) if !self.enabled => Ok(LossScale::first(Self {
                enabled: self.enabled,
                max_consecutive_skips: self.max_consecutive_skips,
                parameter_dtype_gradients: self.parameter_dtype_gradients,
                ..Self::default()
            })),
            checked => checked.map(|()| LossScale::first(*self)),
        }
    }
}

/// The state of a loss-scale schedule: its settings, the scale, and the memory of its [`Schedule`]. Cloned, compared and stored by
/// value.
///
/// [`adjust`](Self::adjust) takes it and the [evidence](crate::schedule::Evidence) of one iteration to the next state, always the same for the same
/// input. So a schedule can be replayed, tested without tensors and stored. Made by [`GradScalerConfig::schedule`].
///
/// The transition of the default schedule is PyTorch's `_amp_update_scale_` (products in f64, rounded to f32; a growth to infinity is not made), with
/// Megatron-LM's floor and hysteresis on top. The idea of a loss scale as a value with an `adjust` of its own is that of
/// DeepMind's `jmp`. Departures from PyTorch: the growth tracker is compared with `>=`, so that a growth interval lowered below
/// it does not stop growth for ever; `min_scale` and `max_scale` bound the scale where they are set; and a scale does not fall to zero, but
/// stays where the next one has no inverse in f32.
///
/// ```
/// use burn_amp::{GradScalerConfig, schedule::Evidence};
///
/// let mut scale = GradScalerConfig::new().with_growth_interval(2).schedule()?;
/// assert_eq!(scale.scale(), 65536.0);
///
/// // An overflow halves the scale; two finite steps in a row double it.
/// scale = scale.adjust(Evidence::Overflow);
/// assert_eq!(scale.scale(), 32768.0);
/// let finite = Evidence::Finite(None);
/// scale = scale.adjust(finite).adjust(finite);
/// assert_eq!(scale.scale(), 65536.0);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// Schedules that look at the gradients want their measures:
///
/// ```
/// use burn_amp::{GradScalerConfig, gradients::GradientStatus, schedule::{Evidence, Schedule}};
///
/// let mut scale = GradScalerConfig::new().with_schedule(Schedule::log_max()).schedule()?;
/// let status = GradientStatus::default().with_max_abs(0.25);
/// for _ in 0..10 {
///     scale = scale.adjust(Evidence::Finite(Some(status.measures())));
/// }
/// assert_eq!(scale.scale(), 131072.0); // f16 holds 0.25 * 131072, and not twice that
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct LossScale {
    pub(super) config: GradScalerConfig,
    /// The scale of the rule (a warm-up may hold down what is used), and the counts of steps: as devices have them too.
    state: ScaleState,
    memory: Memory,
    /// The scale that the last overflow has backed off to: schedules that look at the gradients do not rise above.
    ceiling: Option<f32>,
}

/// PyTorch's: a dynamic schedule with the default settings.
impl Default for LossScale {
    fn default() -> Self {
        Self::first(GradScalerConfig::default())
    }
}

impl LossScale {
    fn first(config: GradScalerConfig) -> Self {
        Self::at_start(config, Memory::first(&config))
    }

    /// The schedule at its first step, moved by this rule.
    fn at_start(config: GradScalerConfig, memory: Memory) -> Self {
        Self {
            state: first_state(&config, &memory),
            config,
            memory,
            ceiling: None,
        }
    }

    /// The factor by which the loss of the next step is multiplied: 1 where it is disabled.
    pub fn scale(&self) -> f32 {
        match (self.config.enabled, self.config.warmup_steps) {
            (false, _) => 1.0,
            (true, 0) => self.state.scale,
            (true, _) => self.state.capped(),
        }
    }

    /// The number of finite steps in a row that make the scale grow at present: the setting, or the interval that
    /// [`Schedule::AdaptiveInterval`] has reached.
    pub fn growth_interval(&self) -> u32 {
        self.state.growth_interval
    }

    /// The magnitude from which on unscaled gradients are to be counted, if the rule wants to know.
    pub(crate) fn edge(&self) -> Option<f32> {
        let edge = f64::from(self.count_from()?) / f64::from(self.scale());
        self.config.dynamic.then_some(edge as f32)
    }

    /// The magnitude from which on the rule wants scaled values to be counted, if it does.
    pub(super) fn count_from(&self) -> Option<f32> {
        match (&self.memory, &self.config.schedule) {
            (Memory::NearTop(_), Schedule::NearTop(settings)) => Some(settings.count_from()),
            (Memory::Own(rule), _) => rule.count_from(),
            _ => None,
        }
    }

    /// The rule looks at more than the outcomes of steps.
    pub(super) fn needs_measures(&self) -> bool {
        !matches!(
            self.memory,
            Memory::GrowthInterval | Memory::AdaptiveInterval
        )
    }

    /// The settings, those changed since included.
    pub fn config(&self) -> &GradScalerConfig {
        &self.config
    }

    /// The number of finite steps in a row since the schedule last moved; 0 for a static scale.
    pub fn growth_tracker(&self) -> u32 {
        self.state.growth_tracker
    }

    /// Overflows left until the scale backs off: 1 means that the next one lowers it.
    pub fn hysteresis_tracker(&self) -> u32 {
        self.state.hysteresis_tracker
    }

    /// The state after one more iteration: a deterministic function of this state and of the evidence.
    ///
    /// Without measures, a finite step leaves the scale as it is under schedules that look at the gradients; counts and a warm-up go on. Gradients that
    /// are all zero let no scale rise, and count for nothing, but under PyTorch's schedule. A static scale never changes.
    ///
    /// Never fails, and never goes to a scale that cannot be applied, because it is not finite or its inverse is infinite in f32: at zero every
    /// gradient would be zero or NaN. There the scale stays, also below the cap of a warm-up, and so does the memory of its rule. The log says it of a
    /// rule that is not one of the settings'.
    #[must_use]
    pub fn adjust(mut self, evidence: Evidence) -> Self {
        if !self.config.dynamic || !self.config.enabled {
            return self;
        }
        let (before, used, remembered) = (self.state.scale, self.scale(), self.memory.clone());
        let overflow = evidence == Evidence::Overflow;
        let is_evidence = matches!(self.memory, Memory::GrowthInterval) || !evidence.is_all_zero();
        let tolerated = self.state.hysteresis_tracker;
        let is_due = is_evidence && self.state.count(overflow);
        if is_due && !overflow {
            let lifted = |ceiling| (f64::from(ceiling) * self.config.growth_factor) as f32;
            self.ceiling = self.ceiling.map(lifted).filter(|c| c.is_finite());
        }
        let next = match &mut self.memory {
            Memory::GrowthInterval | Memory::AdaptiveInterval => NextScale::Counted,
            memory => memory.advance(&self.config.schedule, used, evidence),
        };
        let asked = match next {
            NextScale::Counted if !is_due => before,
            NextScale::Counted if !overflow => self.grown(before),
            NextScale::Counted | NextScale::Lower => self.backed_off(used),
            NextScale::Same => before,
            NextScale::UpTo(scale) => self.below_ceiling(scale, self.grown(used)),
            NextScale::AtOnce(scale) => self.below_ceiling(scale, f32::INFINITY),
            NextScale::Exactly(scale) => self.clamped(scale),
        };
        // Gradients can be divided by it in f32.
        let has_inverse = asked.is_finite() && (1.0 / f64::from(asked)) as f32 != f32::INFINITY;
        match has_inverse {
            false => self.memory = remembered,
            true if is_evidence => self.state.scale = asked,
            true => self.state.scale = asked.min(before),
        }
        match next {
            NextScale::Counted if overflow && is_due && self.needs_measures() => {
                self.ceiling = Some(self.state.scale);
            }
            // None is tolerated.
            NextScale::Exactly(_) if overflow => self.state.hysteresis_tracker = tolerated,
            _ if !overflow && self.state.scale > before => self.state.count_growth(),
            _ => {}
        }
        if !has_inverse && self.has_own_rule() {
            let (rule, scale) = (self.rule_name(), self.state.scale);
            warn!(
                "the rule `{rule}` asks for the scale {asked:e}, which cannot be applied: it stays at {scale:e}"
            );
        }
        self
    }

    /// One growth above a scale; the same scale where that would be infinite.
    fn grown(&self, from: f32) -> f32 {
        let grown = (f64::from(from) * self.config.growth_factor) as f32;
        match grown.min(self.state.max_scale) {
            grown if grown.is_finite() => grown,
            _ => from,
        }
    }

    fn backed_off(&self, from: f32) -> f32 {
        let lowered = (f64::from(from) * self.config.backoff_factor) as f32;
        lowered.max(self.state.min_scale)
    }

    /// A scale within the bounds. NaN stays.
    pub(crate) fn clamped(&self, scale: f32) -> f32 {
        scale.clamp(self.state.min_scale, self.state.max_scale)
    }

    /// A scale within the bounds, and below the ceiling and another limit. NaN stays.
    fn below_ceiling(&self, scale: f32, limit: f32) -> f32 {
        let limit = self.clamped(self.ceiling.map_or(limit, |ceiling| limit.min(ceiling)));
        scale.clamp(self.state.min_scale, limit)
    }

    /// Tells whether one more overflow finds no lower scale to go to.
    ///
    /// True at `min_scale`, and without one where the next scale could no longer be inverted in f32. Overflows that hysteresis
    /// still tolerates come first. Always false for a static scale.
    pub fn is_at_floor(&self) -> bool {
        let tolerated = self.state.hysteresis_tracker > 1;
        let next = quietly(|| self.clone().adjust(Evidence::Overflow));
        self.config.dynamic && !tolerated && next.scale() >= self.scale()
    }

    /// The same settings and the same rule at the first step. A static scale stays where it was set.
    #[must_use]
    pub(crate) fn restarted(self) -> Self {
        match self.config.dynamic {
            true => Self::at_start(self.config, self.memory.restarted(&self.config)),
            false => self,
        }
    }

    /// The same state with other settings, refused as [`GradScalerConfig::schedule`] refuses them, and those of the growth for a static scale.
    pub(crate) fn with_setting(
        self,
        field: &'static str,
        value: f64,
        change: impl FnOnce(&mut GradScalerConfig),
    ) -> Result<Self, AmpError> {
        self.check_dynamic(field, value)?;
        let mut config = self.config;
        change(&mut config);
        config.check()?;
        let goes_on = config.growth_interval == self.config.growth_interval;
        let memory = self.memory.clone();
        Ok(self.moved_to(config, memory, goes_on))
    }

    /// The same scale and counts under other settings. Also the interval that the run has reached, if it `goes_on`.
    fn moved_to(self, config: GradScalerConfig, memory: Memory, goes_on: bool) -> Self {
        let mut state = ScaleState {
            scale: self.state.scale,
            growth_tracker: self.state.growth_tracker,
            hysteresis_tracker: self.state.hysteresis_tracker,
            warmup_step: self.state.warmup_step,
            ..first_state(&config, &memory)
        };
        if goes_on && memory == Memory::AdaptiveInterval {
            state.growth_interval = self.state.growth_interval;
            state.growths_in_a_row = self.state.growths_in_a_row;
        }
        Self {
            config,
            state,
            memory,
            ceiling: self.ceiling,
        }
    }

    /// The same state with another scale; trackers stay, as in PyTorch's `update(new_scale)`. A warm-up goes on.
    pub(crate) fn with_scale(mut self, field: &'static str, scale: f64) -> Result<Self, AmpError> {
        self.state.scale = match self.config.dynamic {
            true => self.config.checked_in_range(field, scale)?,
            false => checked_scale(field, scale)?,
        };
        self.ceiling = self.ceiling.filter(|ceiling| *ceiling >= self.state.scale);
        Ok(self)
    }

    /// The same state with another count of finite steps in a row.
    pub(crate) fn with_growth_tracker(mut self, tracker: u32) -> Result<Self, AmpError> {
        let (field, value) = ("growth_tracker", tracker.into());
        self.check_dynamic(field, value)?;
        let interval = self.growth_interval();
        let allowed = format!("below `growth_interval`, {interval}");
        in_range(field, value, tracker < interval, &allowed)?;
        self.state.growth_tracker = tracker;
        Ok(self)
    }

    /// PyTorch's five values; it allows a tracker beyond the interval. A static scale takes the scale alone.
    pub(crate) fn restored(
        mut self,
        [scale, growth_factor, backoff_factor]: [f64; 3],
        [growth_interval, growth_tracker]: [u32; 2],
    ) -> Result<Self, AmpError> {
        if self.config.dynamic {
            let config = GradScalerConfig {
                growth_factor,
                backoff_factor,
                growth_interval,
                ..self.config
            };
            config.check()?;
            let state = ScaleState {
                growth_tracker,
                warmup_step: self.state.warmup_step,
                ..first_state(&config, &self.memory)
            };
            (self.config, self.state) = (config, state);
        }
        self.with_scale("scale", scale)
    }

    /// Nothing is multiplied by it: where nothing is scaled, and in bf16, where it stays at 1. It has no state then.
    pub(crate) fn is_idle(&self) -> bool {
        !self.config.enabled || (!self.config.dynamic && self.state.scale == 1.0)
    }

    /// This program's schedule at a stored state: with the settings of that, or with its own. The memory goes on if it is of the same rule, and
    /// starts again otherwise. An idle state has nothing to go on with. The error says why the rule refuses it.
    ///
    /// A scale outside the bounds is moved to the nearest; a static scale that was given another `init_scale` keeps that.
    pub(crate) fn resumed(mut self, stored: &Self, with_settings: bool) -> Result<Self, String> {
        if with_settings {
            let rule = self.memory.restarted(&stored.config);
            let mut config = stored.config;
            config.enabled = self.config.enabled;
            return stored.clone().under(config, rule);
        }
        let config = self.config;
        if !config.enabled || (config.dynamic && stored.is_idle()) {
            return Ok(self.restarted());
        }
        if !config.dynamic {
            if !stored.config.dynamic && stored.config.init_scale == config.init_scale {
                self.state.scale = stored.state.scale;
            }
            return Ok(self);
        }
        // As many of the tolerated overflows are used up.
        let used = stored.config.hysteresis - stored.state.hysteresis_tracker;
        let state = ScaleState {
            scale: self.clamped(stored.state.scale),
            hysteresis_tracker: config.hysteresis.saturating_sub(used).max(1),
            warmup_step: stored.state.warmup_step.min(config.warmup_steps),
            ..stored.state
        };
        let next = Self {
            state,
            ..stored.clone()
        };
        next.under(config, self.memory.restarted(&config))
    }

    /// The same state under these settings and a rule that is at its start, or goes on with what is remembered if that is its own. The error says why it
    /// refuses that.
    fn under(mut self, config: GradScalerConfig, rule: Memory) -> Result<Self, String> {
        let continued = rule.continuing(&self.memory)?;
        let goes_on = continued.is_some();
        if !goes_on {
            self.ceiling = None;
        }
        Ok(self.moved_to(config, continued.unwrap_or(rule), goes_on))
    }

    /// The same scale moved by a rule of your own, in place of the one in the settings. Bounds, factors, hysteresis, warm-up and counts are
    /// those of the settings.
    ///
    /// A state under a rule of this name, such as one that was read from JSON, goes on with what that remembers. Any other rule is replaced, and
    /// this one begins as it is given. `GradScaler::reset` brings it back to that. Two scales under it are equal if their
    /// rules are.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the name is empty or that of a built-in rule, or if the rule refuses the stored state.
    pub fn with_rule<R: Rule + Clone + PartialEq>(self, rule: R) -> Result<Self, AmpError> {
        let name = rule.name();
        if name.is_empty() || Memory::BUILT_IN.contains(&name) {
            let allowed = "a name of its own, which no built-in rule has";
            return Err(AmpError::refused("name", format!("`{name}`"), allowed));
        }
        let config = self.config;
        self.under(config, Memory::Own(OwnRule::new(rule)))
            .map_err(|reason| AmpError::refused("state", reason, "one that the rule can have"))
    }

    /// The rule that moves it, by name: one of [`Schedule`]'s or your own.
    pub fn rule_name(&self) -> &str {
        self.memory.name()
    }

    /// It is moved by a rule that is not one of the settings'.
    pub(crate) fn has_own_rule(&self) -> bool {
        matches!(self.memory, Memory::Own(_))
    }

    /// Refuses a stored state whose rule is missing.
    pub(crate) fn check_rule(self) -> Result<Self, AmpError> {
        match &self.memory {
            Memory::Own(rule) if rule.is_unknown() => {
                let value = format!("stored under the rule `{}`", rule.name);
                let allowed = "given that rule, by `LossScale::with_rule`";
                Err(AmpError::refused("schedule", value, allowed))
            }
            _ => Ok(self),
        }
    }

    /// Settings and rule are those of another, whatever both have reached.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.config == other.config && self.rule_name() == other.rule_name()
    }

    fn check_dynamic(&self, field: &'static str, value: f64) -> Result<(), AmpError> {
        let allowed = "left alone: the loss scale is static";
        in_range(field, value, self.config.dynamic, allowed)
    }
}

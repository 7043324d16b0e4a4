//! The schedule of the loss scale, as a pure value: no tensors, no device, no clock.

use serde::{Deserialize, Serialize};

mod adaptive_interval;
mod config;
mod device;
mod log_max;
mod near_top;
mod openseq2seq;
mod outcome;
mod schedule;
mod warmup;

pub use config::GradScalerConfig;
pub(crate) use outcome::Measures;
pub use outcome::{Observation, StepOutcome};
pub use schedule::Schedule;

use crate::error::AmpError;
use config::checked_scale;
use openseq2seq::{OpenSeq2Seq, nan_if_null};
use schedule::State;

/// The largest finite f16.
const F16_MAX: f64 = 65504.0;

impl GradScalerConfig {
    /// Checks the settings and builds the schedule at its first step. Those of a static scale are checked too.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range: a growth factor that is not above 1,
    /// a backoff factor outside (0, 1), an interval or a hysteresis of 0, a scale that is not positive and finite as an f32,
    /// `max_scale` below `min_scale`, an `init_scale` outside them, a parameter of [`Schedule`] or of the warm-up outside its range.
    pub fn schedule(&self) -> Result<LossScale, AmpError> {
        self.check()?;
        Ok(LossScale::first(*self))
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
/// // An overflow halves the scale; two clean steps in a row double it.
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
/// use burn_amp::{GradScalerConfig, GradientStatus, Schedule, StepOutcome};
///
/// let mut scale = GradScalerConfig::new().with_schedule(Schedule::log_max()).schedule()?;
/// let status = GradientStatus::default().with_max_abs(0.25);
/// for _ in 0..10 {
///     scale = scale.adjust((StepOutcome::Stepped, &status));
/// }
/// assert_eq!(scale.scale(), 131072.0); // f16 holds 0.25 * 131072, and not twice that
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct LossScale {
    config: GradScalerConfig,
    /// As the schedule has it: a warm-up may hold down what is used.
    scale: f32,
    growth_tracker: u32,
    /// The overflow of this number, counted from now, backs the scale off; never below 1.
    hysteresis_tracker: u32,
    // These are absent from records where they say nothing, as from those of earlier releases.
    #[serde(skip_serializing_if = "State::is_empty")]
    state: State,
    /// Where the last overflow has backed off to: schedules that look at the gradients do not rise above.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<f32>,
    /// Iterations of the warm-up so far.
    #[serde(skip_serializing_if = "is_zero")]
    warmup_step: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
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
            state: config.schedule.state(config.growth_interval),
            ceiling: None,
            warmup_step: 0,
        }
    }

    /// The factor by which the loss of the next step is multiplied.
    pub fn scale(&self) -> f32 {
        match self.cap() {
            Some(cap) => self.scale.min(cap),
            None => self.scale,
        }
    }

    fn cap(&self) -> Option<f32> {
        let config = &self.config;
        let cap = || {
            let (first, levels) = (config.warmup_scale, config.warmup_levels);
            warmup::cap(self.warmup_step, config.warmup_steps, first, levels)
        };
        config.dynamic.then(cap).flatten()
    }

    /// How many clean steps in a row make the scale grow at present: the setting, or what
    /// [`Schedule::AdaptiveInterval`] has made of it.
    pub fn growth_interval(&self) -> u32 {
        match &self.state {
            State::AdaptiveInterval(state) => state.interval,
            _ => self.config.growth_interval,
        }
    }

    /// From which magnitude on unscaled gradients are to be counted, if the schedule wants to know.
    pub(crate) fn edge(&self) -> Option<f32> {
        match self.config.schedule {
            Schedule::NearTop { edge, .. } if self.config.dynamic => {
                Some((f64::from(near_top::edge(edge)) / f64::from(self.scale())) as f32)
            }
            _ => None,
        }
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

    /// The state after one more iteration: a deterministic function of this state and of what the iteration has shown.
    ///
    /// Takes a [`StepOutcome`], or that and the [`GradientStatus`](crate::GradientStatus) of the gradients: `(outcome, &status)`.
    /// Without a status, schedules that look at the gradients learn nothing from a clean step.
    ///
    /// [`Stepped`](StepOutcome::Stepped) counts as clean, [`Skipped`](StepOutcome::Skipped) and
    /// [`Dropped`](StepOutcome::Dropped) as an overflow; the others change nothing. A static scale never changes. Never fails
    /// and never yields a scale that is negative or not finite, but for [`Schedule::OpenSeq2SeqLogMax`].
    #[must_use]
    pub fn adjust(mut self, seen: impl Into<Observation>) -> Self {
        let Observation { outcome, measures } = seen.into();
        let overflow = match outcome {
            _ if !self.config.dynamic => return self,
            StepOutcome::Stepped => false,
            StepOutcome::Skipped | StepOutcome::Dropped => true,
            StepOutcome::Accumulated | StepOutcome::NoGradients | StepOutcome::Guarded => {
                return self;
            }
        };
        match overflow {
            true => self.overflow(),
            false => self.clean(measures),
        }
        self.warmup_step = (self.warmup_step.saturating_add(1)).min(self.config.warmup_steps);
        self
    }

    fn clean(&mut self, measures: Option<Measures>) {
        let is_due = self.is_growth_due();
        let mut state = self.state;
        match (&mut state, self.config.schedule) {
            (State::AdaptiveInterval(state), Schedule::AdaptiveInterval { min_interval, .. }) => {
                let before = self.scale;
                if is_due {
                    self.scale = self.grown(before);
                }
                if self.scale > before {
                    state.grew(min_interval);
                }
            }
            (
                State::LogMax(state),
                Schedule::LogMax {
                    beta1,
                    beta2,
                    overflow_std_dev,
                },
            ) => {
                self.lift_ceiling(is_due);
                if let Some(measures) = measures {
                    state.see(measures.max_abs, beta1, beta2);
                    if let Some(scale) = state.predict(overflow_std_dev) {
                        self.scale = self.below_ceiling(scale.min(self.grown(self.scale())));
                    }
                }
            }
            (
                State::OpenSeq2SeqLogMax(state),
                Schedule::OpenSeq2SeqLogMax {
                    beta1,
                    beta2,
                    overflow_std_dev,
                    ..
                },
            ) => {
                if let Some(measures) = measures {
                    let x = OpenSeq2Seq::log2(measures.max_abs);
                    self.scale = self.clamped(state.next(x, [beta1, beta2, overflow_std_dev]));
                }
            }
            (State::NearTop(state), Schedule::NearTop { share, period, .. }) => {
                self.lift_ceiling(is_due);
                let updates = state.count(period);
                if let Some(Measures {
                    elements, above, ..
                }) = measures.filter(|_| updates)
                {
                    self.scale = match near_top::is_too_high(elements, above, share) {
                        true => self.backed_off(),
                        false => self.below_ceiling(self.grown(self.scale())),
                    };
                }
            }
            _ => {
                if is_due {
                    self.scale = self.grown(self.scale);
                }
            }
        }
        self.state = state;
    }

    /// Counts a clean step; whether the scale may grow.
    fn is_growth_due(&mut self) -> bool {
        self.growth_tracker = self.growth_tracker.saturating_add(1);
        if self.config.consecutive_hysteresis {
            self.hysteresis_tracker = self.config.hysteresis;
        }
        // `>=`, where PyTorch has `==`: see the type's documentation.
        let is_due = self.growth_tracker >= self.growth_interval();
        if is_due {
            self.growth_tracker = 0;
            self.hysteresis_tracker = self.config.hysteresis;
        }
        is_due
    }

    fn overflow(&mut self) {
        self.growth_tracker = 0;
        let mut state = self.state;
        match (&mut state, self.config.schedule) {
            (State::AdaptiveInterval(state), Schedule::AdaptiveInterval { max_interval, .. }) => {
                state.overflow(max_interval);
            }
            (State::NearTop(state), Schedule::NearTop { period, .. }) => {
                state.count(period);
            }
            (
                State::OpenSeq2SeqLogMax(state),
                Schedule::OpenSeq2SeqLogMax {
                    beta1,
                    beta2,
                    overflow_std_dev,
                    log_max,
                },
            ) => {
                let x = log_max.exp2() as f32;
                self.scale = self.clamped(state.next(x, [beta1, beta2, overflow_std_dev]));
                self.state = State::OpenSeq2SeqLogMax(*state);
                return;
            }
            _ => {}
        }
        self.state = state;
        if self.hysteresis_tracker > 1 {
            self.hysteresis_tracker -= 1;
            return;
        }
        self.scale = self.backed_off();
        if matches!(self.state, State::LogMax(_) | State::NearTop(_)) {
            self.ceiling = Some(self.scale);
        }
    }

    fn grown(&self, from: f32) -> f32 {
        let grown = (f64::from(from) * self.config.growth_factor) as f32;
        match self.config.max() {
            Some(max) if grown > max => max,
            _ if grown.is_finite() => grown,
            _ => from,
        }
    }

    fn backed_off(&self) -> f32 {
        let lowered = (f64::from(self.scale()) * self.config.backoff_factor) as f32;
        self.config.min().map_or(lowered, |min| lowered.max(min))
    }

    /// Within the bounds. NaN stays.
    pub(crate) fn clamped(&self, mut scale: f32) -> f32 {
        if let Some(min) = self.config.min().filter(|min| scale < *min) {
            scale = min;
        }
        match self.config.max() {
            Some(max) if scale > max => max,
            _ => scale,
        }
    }

    fn below_ceiling(&self, scale: f32) -> f32 {
        self.clamped(self.ceiling.map_or(scale, |ceiling| scale.min(ceiling)))
    }

    fn lift_ceiling(&mut self, is_due: bool) {
        if let Some(ceiling) = self.ceiling.filter(|_| is_due) {
            let lifted = (f64::from(ceiling) * self.config.growth_factor) as f32;
            self.ceiling = lifted.is_finite().then_some(lifted);
        }
    }

    /// As [`adjust`](Self::adjust), for a scale that is applied: where it would have no inverse in f32, it stays. At zero every
    /// gradient would be zero or NaN, for good.
    pub(crate) fn learn(self, seen: impl Into<Observation>) -> Self {
        let next = self.adjust(seen);
        match has_inverse(next.scale()) {
            true => next,
            false => Self {
                scale: self.scale,
                ..next
            },
        }
    }

    /// Whether one more overflow finds no lower scale to go to.
    ///
    /// True at `min_scale`, and without one where the next scale could no longer be inverted in f32. Overflows that hysteresis
    /// still tolerates come first. Always false for a static scale.
    pub fn is_at_floor(&self) -> bool {
        let tolerated = self.hysteresis_tracker > 1;
        let next = self.adjust(StepOutcome::Skipped).scale();
        self.config.dynamic && !tolerated && (next >= self.scale() || !has_inverse(next))
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
        if let State::AdaptiveInterval(_) = self.state {
            self.state = self.config.schedule.state(self.config.growth_interval);
        }
    }

    /// The same state with another scale; trackers stay, as in PyTorch's `update(new_scale)`. A warm-up goes on.
    pub(crate) fn with_scale(mut self, field: &'static str, scale: f64) -> Result<Self, AmpError> {
        self.scale = match self.config.dynamic {
            true => self.config.checked_in_range(field, scale)?,
            false => checked_scale(field, scale)?,
        };
        self.ceiling = self.ceiling.filter(|ceiling| *ceiling >= self.scale);
        Ok(self)
    }

    /// The same state with another count of clean steps in a row.
    pub(crate) fn with_growth_tracker(mut self, tracker: u32) -> Result<Self, AmpError> {
        self.check_dynamic("growth_tracker", tracker.into())?;
        let interval = self.growth_interval();
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
            self.restart_interval();
            self.growth_tracker = growth_tracker;
            self.hysteresis_tracker = self.config.hysteresis;
        }
        self.with_scale("scale", scale)
    }

    /// These settings with the scale and the counts of another state, and with what its schedule remembers if it is the same one.
    /// A scale outside the bounds is moved to the nearest; a static scale that was given another `init_scale` keeps that.
    pub(crate) fn continuing(mut self, other: &Self) -> Self {
        let config = &self.config;
        let same =
            |other: &GradScalerConfig| !other.dynamic && other.init_scale == config.init_scale;
        if config.dynamic {
            self.scale = match other.scale.is_nan() {
                true => self.scale,
                false => self.clamped(other.scale),
            };
            if self.state.is_like(&other.state) {
                self.state = other.state;
                self.ceiling = other.ceiling;
            }
            self.warmup_step = other.warmup_step.min(config.warmup_steps);
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
    scale.is_finite() && (1.0 / f64::from(scale)) as f32 != f32::INFINITY
}

/// A stored state before its checks: what serde reads must be as valid as what is built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    config: GradScalerConfig,
    #[serde(deserialize_with = "nan_if_null")]
    scale: f32,
    growth_tracker: u32,
    hysteresis_tracker: u32,
    #[serde(default)]
    state: State,
    #[serde(default)]
    ceiling: Option<f32>,
    #[serde(default)]
    warmup_step: u32,
}

impl TryFrom<Stored> for LossScale {
    type Error = AmpError;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let schedule = stored.config.schedule()?;
        // Zero is a state that a schedule reaches without `min_scale`, and NaN one of OpenSeq2Seq's.
        let is_zero = stored.scale.to_bits() == 0 && stored.config.min_scale.is_none();
        let is_lost = stored.scale.is_nan() && matches!(stored.state, State::OpenSeq2SeqLogMax(_));
        if !is_zero && !is_lost {
            schedule.with_scale("scale", stored.scale.into())?;
        }
        let hysteresis = stored.config.hysteresis;
        if !(1..=hysteresis).contains(&stored.hysteresis_tracker) {
            let allowed = format!("between 1 and `hysteresis`, {hysteresis}");
            let tracker = stored.hysteresis_tracker;
            return Err(AmpError::invalid("hysteresis_tracker", tracker, allowed));
        }
        if !stored.state.is_like(&schedule.state) || !stored.state.is_valid() {
            let allowed = "one that the `schedule` of the settings can have";
            return Err(AmpError::InvalidValue {
                field: "state",
                value: format!("{:?}", stored.state),
                allowed: allowed.into(),
            });
        }
        // Zero, as above.
        if let Some(ceiling) = stored.ceiling.filter(|ceiling| ceiling.to_bits() != 0) {
            checked_scale("ceiling", ceiling.into())?;
        }
        let steps = stored.config.warmup_steps;
        if stored.warmup_step > steps {
            let allowed = format!("at most `warmup_steps`, {steps}");
            return Err(AmpError::invalid(
                "warmup_step",
                stored.warmup_step,
                allowed,
            ));
        }
        Ok(Self {
            config: schedule.config,
            scale: stored.scale,
            growth_tracker: stored.growth_tracker,
            hysteresis_tracker: stored.hysteresis_tracker,
            state: stored.state,
            ceiling: stored.ceiling,
            warmup_step: stored.warmup_step,
        })
    }
}

//! What a part of a network multiplies its gradients by, beside the loss scale: [`Rescale`].

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::{
    adaloss::{AdaLoss, LIMIT, Statistics},
    error::{AmpError, in_range, short},
    loss_scale::{GradScalerConfig, LossScale, Measures, Observation, StepOutcome},
};

/// What [`rescaled`](crate::rescaled) multiplies gradients by: a power of two that is fixed, or a factor that moves by a rule.
///
/// A number `k` is 2^k, for good. The others have a name and a state, which all openings of one name share. It lives beside the
/// loss scale of the [`MixedPrecision`](crate::MixedPrecision), moves with its steps, and is in its records. Name parts after what they are: a
/// name is found again in a record, the order in which parts are opened may change.
///
/// ```
/// use burn_amp::{GradScalerConfig, Rescale};
///
/// let fixed = Rescale::from(12); // 2^12
/// let dynamic = Rescale::dynamic("trunk"); // from 1, by PyTorch's rule
/// let eager = Rescale::dynamic("trunk")
///     .with_scaler(GradScalerConfig::new().with_init_scale(1.0).with_growth_interval(100))?;
/// let measured = Rescale::adaloss("trunk"); // by the statistics of the gradient
/// # let _ = (fixed, dynamic, eager, measured);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rescale(pub(crate) Rule);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rule {
    Fixed(i32),
    Driven(Arc<Driven>),
}

/// A part whose factor moves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Driven {
    pub(crate) name: Arc<str>,
    /// Its factor at the first step; for AdaLoss, the bound of its factor.
    schedule: LossScale,
    adaloss: Option<AdaLoss>,
}

/// 2^k, for good.
impl From<i32> for Rescale {
    fn from(k: i32) -> Self {
        Self(Rule::Fixed(k))
    }
}

impl Rescale {
    /// A factor that moves by a schedule of its own, from 1: PyTorch's, or another by [`with_scaler`](Self::with_scaler). Layer by layer, that is FairScale's `LayerwiseGradientScaler`.
    ///
    /// It backs off where the gradient overflows in this part first, and grows after clean steps. Where no loss scale is in use
    /// ([`enabled`](GradScalerConfig::enabled)) it is 1.
    pub fn dynamic(part: impl Into<Arc<str>>) -> Self {
        let config = GradScalerConfig::new().with_init_scale(1.0);
        Self::driven(part.into(), config, None)
    }

    /// A factor from the statistics of the gradient that comes to the part: AdaLoss (Zhao et al., "Adaptive Loss Scaling", 2019).
    ///
    /// After each clean step it is the least power of two, up to 16, at which no more than a thousandth of normally distributed values would
    /// underflow. The product with the factors of the parts around it stays within 1024. An overflow in the part halves the bound of 16, which then
    /// grows again as PyTorch's scale does; the original has no such bound. The deviation is taken as that of a mean of zero. On
    /// devices without our kernels nothing is measured, and the factor stays at 1.
    pub fn adaloss(part: impl Into<Arc<str>>) -> Self {
        let config = GradScalerConfig::new()
            .with_init_scale(LIMIT)
            .with_max_scale(Some(LIMIT));
        Self::driven(part.into(), config, Some(AdaLoss::default()))
    }

    fn driven(name: Arc<str>, config: GradScalerConfig, adaloss: Option<AdaLoss>) -> Self {
        let schedule = config.schedule().expect("the defaults are valid");
        Self(Rule::Driven(Arc::new(Driven {
            name,
            schedule,
            adaloss,
        })))
    }

    /// Other settings of the schedule. Scales in them are factors of this part: its `init_scale` is most often 1. For AdaLoss they
    /// bound the factor: 16 is its `init_scale` and its `max_scale`.
    ///
    /// What is not of the schedule (`enabled`, `max_consecutive_skips`, `parameter_dtype_gradients`) counts in the settings of
    /// the [`MixedPrecision`](crate::MixedPrecision) alone.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], as [`GradScalerConfig::schedule`], and for a fixed factor. [`Schedule::NearTop`](crate::Schedule::NearTop) is refused: values near the
    /// top are not counted where gradients come to parts.
    pub fn with_scaler(self, config: GradScalerConfig) -> Result<Self, AmpError> {
        self.change_schedule("with_scaler", config.schedule()?)
    }

    /// Another schedule, its settings and its [rule](crate::schedule::Rule) included. It is shown the gradients that come to this part, over
    /// the product of all factors. A record of a part that was not opened yet cannot be checked by the rule when it is loaded: a state that the
    /// rule refuses starts again then, with a warning.
    ///
    /// # Errors
    ///
    /// As [`with_scaler`](Self::with_scaler) and [`MixedPrecision::with_schedule`](crate::MixedPrecision::with_schedule), and for a rule that counts values
    /// near the top.
    pub fn with_schedule(self, schedule: LossScale) -> Result<Self, AmpError> {
        self.change_schedule("with_schedule", schedule.check_rule()?)
    }

    fn change_schedule(self, field: &'static str, schedule: LossScale) -> Result<Self, AmpError> {
        if schedule.counts_near_top() {
            return Err(AmpError::InvalidValue {
                field: "schedule",
                value: format!("`{}`", schedule.rule_name()),
                allowed: "another for a part".to_string(),
            });
        }
        self.change(field, |driven| driven.schedule = schedule)
    }

    /// For AdaLoss: the share of values that may underflow (default 0.001), and the largest product of nested parts' factors
    /// (default 1024).
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if `underflow_share` is not above 0 and at most 0.5, or `total_limit` not finite and at least 1, and for a factor that
    /// is not AdaLoss's.
    pub fn with_statistics(self, underflow_share: f64, total_limit: f64) -> Result<Self, AmpError> {
        let inside = underflow_share > 0.0 && underflow_share <= 0.5;
        let allowed = "above 0 and at most 0.5";
        in_range("underflow_share", underflow_share, inside, allowed)?;
        let inside = total_limit.is_finite() && total_limit >= 1.0;
        in_range("total_limit", total_limit, inside, "finite and at least 1")?;
        if !matches!(&self.0, Rule::Driven(driven) if driven.adaloss.is_some()) {
            return Err(self.refused("with_statistics", "a setting of `Rescale::adaloss`"));
        }
        self.change("with_statistics", |driven| {
            driven.adaloss = Some(AdaLoss {
                underflow_share,
                total_limit,
            });
        })
    }

    fn change(
        mut self,
        field: &'static str,
        change: impl FnOnce(&mut Driven),
    ) -> Result<Self, AmpError> {
        match &mut self.0 {
            Rule::Driven(driven) => {
                change(Arc::make_mut(driven));
                Ok(self)
            }
            Rule::Fixed(_) => Err(self.refused(field, "a setting of a part that has a name")),
        }
    }

    fn refused(&self, field: &'static str, allowed: &str) -> AmpError {
        AmpError::InvalidValue {
            field,
            value: format!("a setting of {self:?}"),
            allowed: allowed.to_string(),
        }
    }
}

/// The state of a part whose factor moves. A value, without tensors.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    stored: PartState,
    /// What the program wants; none until it has opened a part that came from a record.
    settings: Option<Driven>,
    /// Whether the settings of the record are to be kept.
    keeps_settings: bool,
    warned: bool,
    /// Whether it was opened since the last step.
    opened: bool,
    seen: Option<Statistics>,
}

/// What a record holds of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartState {
    schedule: LossScale,
    /// What gradients are multiplied by, where that is not the schedule's scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    factor: Option<f32>,
}

impl PartState {
    /// What no run can have stored, if there is something.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let usable = |factor: f32| factor.is_normal() && factor > 0.0;
        let factors = [Some(self.schedule.scale()), self.factor];
        let mut factors = factors.into_iter().flatten();
        let bad = factors.find(|factor| !usable(*factor))?;
        Some(format!("the factor of a part is {bad}"))
    }

    fn first(driven: &Driven) -> Self {
        Self {
            schedule: driven.schedule.clone(),
            // Nothing is known yet.
            factor: driven.adaloss.map(|_| driven.schedule.scale().min(1.0)),
        }
    }

    pub(crate) fn factor(&self) -> f32 {
        self.factor.unwrap_or(self.schedule.scale())
    }
}

impl Driven {
    /// What it multiplies by before the first step.
    pub(crate) fn first_factor(&self) -> f32 {
        PartState::first(self).factor()
    }
}

impl Part {
    pub(crate) fn new(driven: &Driven) -> Self {
        let mut part = Self::stored(PartState::first(driven), false);
        part.settings = Some(driven.clone());
        part
    }

    /// One that a record has brought, with its settings or without.
    pub(crate) fn stored(stored: PartState, keeps_settings: bool) -> Self {
        Self {
            stored,
            settings: None,
            keeps_settings,
            warned: false,
            opened: false,
            seen: None,
        }
    }

    pub(crate) fn state(&self) -> PartState {
        self.stored.clone()
    }

    pub(crate) fn factor(&self) -> f32 {
        self.stored.factor()
    }

    /// A program opens it with these settings: the first ones count, or those of the record.
    pub(crate) fn open(&mut self, driven: &Driven) {
        self.opened = true;
        match &self.settings {
            Some(settings) if settings == driven => {}
            Some(_) => {
                if !std::mem::replace(&mut self.warned, true) {
                    log::warn!(
                        "part `{}` is opened with other settings than before, and keeps the first ones: give parts names of their own",
                        driven.name
                    );
                }
            }
            None => {
                self.adopt(driven);
                self.settings = Some(driven.clone());
            }
        }
    }

    fn adopt(&mut self, driven: &Driven) {
        let before = self.factor();
        let is_other = !self.stored.schedule.is_like(&driven.schedule);
        self.stored.schedule = match self.resumed(&self.stored, driven) {
            Ok(schedule) => {
                if is_other && !self.keeps_settings {
                    log::warn!(
                        "part `{}` was saved with other settings, and those of the program are used",
                        driven.name
                    );
                }
                schedule
            }
            Err(reason) => {
                log::warn!("part `{}` starts fresh: {reason}", driven.name);
                driven.schedule.clone()
            }
        };
        let factor = before.min(self.stored.schedule.scale());
        self.stored.factor = driven.adaloss.map(|_| factor);
    }

    /// What a program that opens it with these settings makes of a stored state. The error says why its rule refuses it.
    fn resumed(&self, stored: &PartState, driven: &Driven) -> Result<LossScale, String> {
        let stored = stored.schedule.clone();
        match self.keeps_settings {
            true => stored.with_rule_of(&driven.schedule),
            false => driven.schedule.clone().continuing(&stored),
        }
    }

    /// Why it cannot go on from a stored state, if it is known.
    pub(crate) fn check(&self, stored: &PartState) -> Result<(), String> {
        match &self.settings {
            Some(driven) => self.resumed(stored, driven).map(drop),
            None => Ok(()),
        }
    }

    /// At the first step again.
    pub(crate) fn restart(&mut self) {
        if let Some(driven) = &self.settings {
            *self = Self::new(&driven.clone());
        }
    }

    /// Whether what comes to it is to be read.
    pub(crate) fn wants_statistics(&self) -> bool {
        let settings = self.settings.as_ref();
        settings.is_some_and(|driven| driven.adaloss.is_some())
            || self.stored.schedule.needs_measures()
    }

    pub(crate) fn see(&mut self, statistics: Statistics) {
        self.seen = Some(match self.seen {
            Some(seen) => seen.join(statistics),
            None => statistics,
        });
    }

    /// Ends a step in which the gradient has overflowed here first. Whether there was a lower factor to go to.
    pub(crate) fn back_off(&mut self, name: &str) -> bool {
        self.forget();
        let before = self.factor();
        let stored = &mut self.stored;
        let mut schedule = stored.schedule.clone();
        if stored.factor.is_some() {
            // The bound may be far above what has overflowed.
            schedule = (schedule.clone())
                .with_scale("factor", before.into())
                .unwrap_or(schedule);
        }
        if !schedule.config().dynamic || schedule.is_at_floor() {
            return false;
        }
        stored.schedule = schedule.learn(StepOutcome::Skipped);
        stored.factor = stored.factor.map(|_| stored.schedule.scale());
        let (before, after) = (short(before.into()), short(self.factor().into()));
        log::info!(
            "part `{name}`: gradients overflow at {before} times the loss scale, next {after}"
        );
        true
    }

    /// Ends a clean step, if the part was opened in it.
    pub(crate) fn learn(&mut self, name: &str) {
        if !self.opened {
            return;
        }
        let before = self.factor();
        let stored = &mut self.stored;
        stored.schedule = stored.schedule.clone().learn(Observation {
            outcome: StepOutcome::Stepped,
            measures: self.seen.map(|seen| Measures {
                max_abs: seen.max_abs,
                elements: seen.elements,
                above: 0,
            }),
        });
        let adaloss = self.settings.as_ref().and_then(|driven| driven.adaloss);
        if let (Some(adaloss), Some(seen)) = (adaloss, self.seen)
            && let Some(factor) = adaloss.factor(&seen, stored.schedule.scale())
        {
            stored.factor = Some(factor);
        }
        self.forget();
        let after = self.factor();
        if before != after {
            let (before, after) = (short(before.into()), short(after.into()));
            log::debug!("part `{name}`: {before} times the loss scale, next {after}");
        }
    }

    /// The settings with which it was opened since the last step, if it was; not again until it is opened again.
    pub(crate) fn take_opened(&mut self) -> Option<Driven> {
        let opened = std::mem::take(&mut self.opened);
        self.settings.clone().filter(|_| opened)
    }

    /// Goes on where another of its kind is.
    pub(crate) fn follow(&mut self, reached: PartState) {
        self.stored = reached;
    }

    /// Ends a step from which nothing is learned.
    pub(crate) fn forget(&mut self) {
        self.opened = false;
        self.seen = None;
    }
}

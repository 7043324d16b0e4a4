//! The built-in rules as a setting: their names, parameters and checks, and the rule that each is.

use serde::{Deserialize, Serialize};

use crate::error::{AmpError, in_range};
use crate::scale::defaults::{defaults, with_defaults};

/// Which rule moves a dynamic loss scale; [`GradScalerConfig::schedule`](crate::GradScalerConfig::schedule) selects it. A rule of your own is a
/// [`Rule`](crate::schedule::Rule).
///
/// With each of them `min_scale` and `max_scale` bound the scale, and warm-up applies. With each but
/// [`OpenSeq2SeqLogMax`](Self::OpenSeq2SeqLogMax) an overflow multiplies it by `backoff_factor`, hysteresis applies, and it stays a power of two if
/// `init_scale` and the factors are. All are deterministic, work
/// on the host and cost nothing on the device: what they use is measured in the pass that tests the gradients.
///
/// [`LogMax`](Self::LogMax) and [`NearTop`](Self::NearTop) look at the gradients of parameters. Those of activations may overflow before.
/// So an overflow sets a ceiling where it has backed off to. The ceiling is multiplied by `growth_factor` after `growth_interval`
/// finite steps in a row: such a run skips as often as under PyTorch's rule, and no more.
///
/// In JSON, a parameter that is not named has its default, and an unknown one is an error.
///
/// ```
/// use burn::config::Config;
/// use burn_amp::{GradScalerConfig, schedule::LossScale, schedule::Schedule, StepOutcome};
///
/// let config = GradScalerConfig::new().with_schedule(Schedule::log_max());
/// let same: GradScalerConfig = serde_json::from_str(r#"{"schedule": {"LogMax": {"overflow_std_dev": 3.09}}}"#)?;
/// assert_eq!(same, config);
///
/// let adaptive = Schedule::AdaptiveInterval { min_interval: 100, max_interval: 50 };
/// let error = GradScalerConfig::new().with_schedule(adaptive).init().unwrap_err();
/// assert_eq!(error.to_string(), "`max_interval` is 50, but must be at least `min_interval`, 100");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum Schedule {
    /// After `growth_interval` finite steps in a row the scale grows. PyTorch's rule, and the default. With `min_scale` and
    /// `max_scale` it is OpenSeq2Seq's `BackoffScaler` too, which starts at the highest scale.
    #[default]
    GrowthInterval,
    /// As [`GrowthInterval`](Self::GrowthInterval), with an interval that follows the run: an overflow doubles it, two growths in
    /// a row without an overflow between halve it. It begins at `growth_interval`. A rule of our own.
    AdaptiveInterval {
        /// The interval is not halved below this. At least 1; default 100.
        #[serde(default = "defaults::min_interval")]
        min_interval: u32,
        /// The interval is not doubled above this. At least `min_interval`; default 16000.
        #[serde(default = "defaults::max_interval")]
        max_interval: u32,
    },
    /// The scale at which a largest magnitude of `overflow_std_dev` standard deviations above the mean would still be finite in
    /// f16, where its logarithm is taken as normal. It rises by no more than `growth_factor` a step.
    ///
    /// OpenSeq2Seq's log-max ("Mixed-Precision Training for NLP and Speech Recognition with OpenSeq2Seq", Kuchaiev et al., 2018),
    /// with its bugs fixed: scales are powers of two, an overflow backs off and does not enter the statistics, nor does a
    /// gradient that is all zero.
    LogMax {
        /// The decay of the mean. At least 0 and below 1; default 0.99.
        #[serde(default = "defaults::beta1", with = "crate::values::number")]
        beta1: f64,
        /// The decay of the variance. At least 0 and below 1; default 0.999.
        #[serde(default = "defaults::beta2", with = "crate::values::number")]
        beta2: f64,
        /// Standard deviations above the mean. At least 0; default 3.09, which one normal value in 1000 exceeds.
        #[serde(default = "defaults::overflow_std_dev", with = "crate::values::number")]
        overflow_std_dev: f64,
    },
    /// OpenSeq2Seq's `LogMaxScaler` as it is, to reproduce its runs: to be used with `min_scale` 1, `max_scale` 16384 and
    /// `init_scale` 1. The scale is no power of two, one overflow pins it to `min_scale`, and a gradient that is all zero
    /// makes it NaN for good (a scaler keeps the last one then). For training take [`LogMax`](Self::LogMax).
    OpenSeq2SeqLogMax {
        /// The decay of the mean. At least 0 and below 1; default 0.99.
        #[serde(default = "defaults::beta1", with = "crate::values::number")]
        beta1: f64,
        /// The decay of the variance. At least 0 and below 1; default 0.999.
        #[serde(default = "defaults::beta2", with = "crate::values::number")]
        beta2: f64,
        /// Standard deviations above the mean. At least 0; default 3.09.
        #[serde(default = "defaults::overflow_std_dev", with = "crate::values::number")]
        overflow_std_dev: f64,
        /// An overflow enters the statistics as if the logarithm of the largest magnitude were 2 to this power. Finite; default 16.
        #[serde(default = "defaults::log_max", with = "crate::values::number")]
        log_max: f64,
    },
    /// The scale is multiplied by `backoff_factor` if more than a share of the values is near the top of f16, and by `growth_factor`
    /// if not: PopART's automatic loss scaling (Graphcore), with bounds, and with a back-off after an overflow.
    NearTop {
        /// From which magnitude on a scaled value counts as near the top, as a share of f16's largest, 65504. From 0 to 1;
        /// default 0.125.
        #[serde(default = "defaults::edge", with = "crate::values::number")]
        edge: f64,
        /// The share of values near the top that is too large. From 0 to 1; default 1e-7.
        #[serde(default = "defaults::share", with = "crate::values::number")]
        share: f64,
        /// One in this many iterations moves the scale. At least 1; default 1.
        #[serde(default = "defaults::period")]
        period: u32,
    },
}

defaults! {
    min_interval: u32 = 100;
    max_interval: u32 = 16000;
    beta1: f64 = 0.99;
    beta2: f64 = 0.999;
    overflow_std_dev: f64 = 3.09;
    log_max: f64 = 16.0;
    edge: f64 = 0.125;
    share: f64 = 1e-7;
    period: u32 = 1;
}

impl Schedule {
    /// [`AdaptiveInterval`](Self::AdaptiveInterval) with its defaults.
    pub fn adaptive_interval() -> Self {
        with_defaults("AdaptiveInterval")
    }

    /// [`LogMax`](Self::LogMax) with its defaults.
    pub fn log_max() -> Self {
        with_defaults("LogMax")
    }

    /// [`NearTop`](Self::NearTop) with its defaults.
    pub fn near_top() -> Self {
        with_defaults("NearTop")
    }

    /// Of the schedules that go by mean and variance: their decays, and the standard deviations above the mean.
    pub(super) fn moments(&self) -> [f64; 3] {
        match *self {
            Self::LogMax {
                beta1,
                beta2,
                overflow_std_dev,
            }
            | Self::OpenSeq2SeqLogMax {
                beta1,
                beta2,
                overflow_std_dev,
                ..
            } => [beta1, beta2, overflow_std_dev],
            _ => [0.0; 3],
        }
    }

    pub(super) fn check(&self) -> Result<(), AmpError> {
        let decay = |field, beta: f64| {
            let inside = (0.0..1.0).contains(&beta);
            in_range(field, beta, inside, "at least 0 and below 1")
        };
        let share = |field, share: f64| {
            let inside = (0.0..=1.0).contains(&share);
            in_range(field, share, inside, "between 0 and 1")
        };
        let count = |field, count: u32| in_range(field, count.into(), count > 0, "at least 1");
        let [beta1, beta2, std_dev] = self.moments();
        decay("beta1", beta1)?;
        decay("beta2", beta2)?;
        let inside = std_dev.is_finite() && std_dev >= 0.0;
        in_range("overflow_std_dev", std_dev, inside, "finite and at least 0")?;
        match *self {
            Self::GrowthInterval | Self::LogMax { .. } => Ok(()),
            Self::AdaptiveInterval {
                min_interval: min,
                max_interval: max,
            } => {
                count("min_interval", min)?;
                let allowed = format!("at least `min_interval`, {min}");
                in_range("max_interval", max.into(), max >= min, &allowed)
            }
            Self::OpenSeq2SeqLogMax { log_max, .. } => {
                in_range("log_max", log_max, log_max.is_finite(), "finite")
            }
            Self::NearTop {
                edge,
                share: of_values,
                period,
            } => {
                share("edge", edge)?;
                share("share", of_values)?;
                count("period", period)
            }
        }
    }

    /// Whether it can lead to a scale that is NaN or infinite.
    pub(super) fn can_lose_scale(&self) -> bool {
        matches!(self, Self::OpenSeq2SeqLogMax { .. })
    }
}

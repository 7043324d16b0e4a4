//! The built-in rules as a setting.

use serde::{Deserialize, Serialize};

use super::{AdaptiveInterval, LogMax, NearTop};
use crate::error::AmpError;

/// The rule that moves a dynamic loss scale; [`GradScalerConfig::schedule`](crate::GradScalerConfig::schedule) selects it. A rule of your own is a
/// [`Rule`](crate::schedule::Rule).
///
/// With each of them `min_scale` and `max_scale` bound the scale, warm-up and hysteresis apply, an overflow multiplies the scale by
/// `backoff_factor`, and it stays a power of two if `init_scale` and the factors are. All are deterministic, work
/// on the host and cost nothing on the device: what they use is measured in the pass that tests the gradients.
///
/// [`LogMax`](Self::LogMax) and [`NearTop`](Self::NearTop) look at the gradients of parameters. Those of activations may overflow before.
/// So an overflow sets a ceiling where it has backed off to. The ceiling is multiplied by `growth_factor` after `growth_interval`
/// finite steps in a row: such a run skips as often as under PyTorch's rule, and no more.
///
/// In JSON, a parameter that is not named has its default, and an unknown one is an error.
///
/// ```
/// use burn_amp::{GradScalerConfig, schedule::{AdaptiveInterval, Schedule}, torch::GradScaler};
///
/// let config = GradScalerConfig::new().with_schedule(Schedule::log_max());
/// let same: GradScalerConfig = serde_json::from_str(r#"{"schedule": {"LogMax": {"overflow_std_dev": 3.09}}}"#)?;
/// assert_eq!(same, config);
///
/// let adaptive = AdaptiveInterval::new().with_max_interval(50);
/// let error = GradScaler::new(GradScalerConfig::new().with_schedule(Schedule::AdaptiveInterval(adaptive))).unwrap_err();
/// assert_eq!(error.to_string(), "`max_interval` is 50, but must be at least `min_interval`, 100");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum Schedule {
    /// The scale grows after `growth_interval` finite steps in a row. PyTorch's rule, and the default. With `min_scale` and
    /// `max_scale` it is OpenSeq2Seq's `BackoffScaler` too, which starts at the highest scale.
    #[default]
    GrowthInterval,
    /// PyTorch's rule, with an interval that follows the run: an overflow doubles it, two growths in
    /// a row without an overflow between halve it. It begins at `growth_interval`. A rule of our own.
    AdaptiveInterval(AdaptiveInterval),
    /// OpenSeq2Seq's log-max ("Mixed-Precision Training for NLP and Speech Recognition with OpenSeq2Seq", Kuchaiev et al., 2018),
    /// with its bugs fixed: scales are powers of two, an overflow backs off and does not enter the statistics, nor does a
    /// gradient that is all zero.
    LogMax(LogMax),
    /// The scale is multiplied by `backoff_factor` if more than a share of the values is near the top of f16, and by `growth_factor`
    /// if not: PopART's automatic loss scaling (Graphcore), with bounds, and with a back-off after an overflow.
    NearTop(NearTop),
}

impl Schedule {
    /// [`AdaptiveInterval`](Self::AdaptiveInterval) with its defaults.
    pub fn adaptive_interval() -> Self {
        Self::AdaptiveInterval(AdaptiveInterval::new())
    }

    /// [`LogMax`](Self::LogMax) with its defaults.
    pub fn log_max() -> Self {
        Self::LogMax(LogMax::new())
    }

    /// [`NearTop`](Self::NearTop) with its defaults.
    pub fn near_top() -> Self {
        Self::NearTop(NearTop::new())
    }

    pub(super) fn check(&self) -> Result<(), AmpError> {
        match self {
            Self::GrowthInterval => Ok(()),
            Self::AdaptiveInterval(settings) => settings.check(),
            Self::LogMax(settings) => settings.check(),
            Self::NearTop(settings) => settings.check(),
        }
    }
}

//! Guards: finite steps whose gradient norm or loss is far outside of what was usual are clipped or rejected.

mod hook;
mod state;

use burn::config::{Config, config_to_json};
use serde::{Deserialize, Serialize};

use burn_amp_core::internal::{defaults, in_range, number, with_defaults};
use burn_amp_core::{AmpError, hook::Verdict};
use state::GuardState;

/// Guards training against spikes: steps whose gradients are finite, but whose norm or loss is far outside of what was usual.
///
/// Given to [`ScaledOptimizer::with_hook`](burn_amp_core::ScaledOptimizer::with_hook), as the settings of a [hook](burn_amp_core::hook::Hook) named
/// `guard`: an optimizer has one guard, and a setting that is out of its range is an error of the first step. A step that is rejected is
/// [`StepOutcome::Guarded`](burn_amp_core::StepOutcome::Guarded): it is logged, counted in
/// [`StepCounters::guarded`](burn_amp_core::StepCounters::guarded), and leaves parameters, optimizer and averages as they are. The loss scale
/// stays. A step that overflows is none of the guard's: it is skipped, and the guard does not count it.
///
/// With accumulation a guard judges the sum, or the mean, of a window, and drops the whole window. A step rejected ends the iteration as a
/// skipped one: the learning rate of a [`ScaledLrScheduler`](burn_amp_core::ScaledLrScheduler) stays too. Other optimizers on the same
/// [`MixedPrecision`](burn_amp_core::MixedPrecision) still step, and they alone move the scale. With clipping, which sees the gradients after
/// the guard, the norms in the status are those before both. More than
/// [`max_consecutive_skips`](burn_amp_core::GradScalerConfig::max_consecutive_skips) steps rejected in a row end the run.
///
/// The norm is the L2 norm of all unscaled gradients before clipping, which the test of the gradients has found: no further pass,
/// and no further wait. (In f32 nothing tests gradients: then the guard measures them, in one pass
/// and one wait, as clipping does.) The loss is what [`ScaledOptimizer::set_loss`](burn_amp_core::ScaledOptimizer::set_loss) was given; a guard that
/// is given none looks at the norm alone.
///
/// Every rule is pure: the same losses and norms give the same decisions, see [`replay`](Self::replay). Values that are infinite or NaN hold
/// the step back and are forgotten. An outlier enters the statistics as the highest value that would have been accepted, so that some
/// spikes do not hide the next ones, and a new level is accepted after some steps. With `original`, a rule computes as its source does,
/// bugs included: there one NaN turns [`ZClip`](Self::ZClip) and [`Outlier`](Self::Outlier) off for good.
///
/// A Burn [`Config`]: put it into your program's configuration. In JSON, a setting that is not named has its default, and an unknown one is an error.
///
/// ```
/// use burn::optim::SgdConfig;
/// use burn_amp::{GradientClip, MixedPrecision, ScaledOptimizer, adaptive::Guard};
///
/// let amp = MixedPrecision::f16();
/// let optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp)
///     .with_clipping(GradientClip::GlobalNorm(1.0))
///     .with_hook(Guard::zclip());
/// # let _ = optim;
///
/// // What a guard would have done with the losses and norms of a run: the last step is rejected.
/// let usual = (0..20).map(|step| (None, 1.0 + 0.01 * f64::from(step % 3)));
/// let guard = Guard::SkipStep { rolling_interval_length: 16, sigma_factor: 6.0, original: false };
/// let factors = guard.replay(usual.chain([(None, 100.0)]))?;
/// assert_eq!((factors[19], factors[20]), (1.0, 0.0));
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum Guard {
    /// Shortens gradients whose norm is an outlier. ZClip ("ZClip: Adaptive Spike Mitigation for LLM Pre-Training", Kumar et al., 2025).
    ///
    /// Keeps moving averages of the norm and of its variance. A norm of z-score `z` above `z_thresh` is limited to
    /// `mean + z_thresh * std * (z_thresh / z)`, and enters the averages as that. Beside
    /// [`GradientClip::GlobalNorm`](burn_amp_core::GradientClip::GlobalNorm) (ZClip's `max_grad_norm`) the smaller of both limits holds. No step is rejected, unless its norm is not finite. A sudden rise of
    /// the norm that lasts is limited for as long as it lasts, since the limit of a large outlier is near the mean.
    ZClip {
        /// The weight of the averages so far; that of a new norm is 1 less this. At least 0 and below 1; default 0.97.
        #[serde(with = "number", default = "defaults::alpha")]
        alpha: f64,
        /// The z-score above which a norm is an outlier. Above 0; default 2.5.
        #[serde(with = "number", default = "defaults::z_thresh")]
        z_thresh: f64,
        /// Is added to the standard deviation. At least 0; default 1e-6.
        #[serde(with = "number", default = "defaults::eps")]
        eps: f64,
        /// Steps whose plain mean and variance begin the averages, and which are not limited. From 1 to 65536; default 25.
        #[serde(default = "defaults::warmup_steps")]
        warmup_steps: u32,
        /// The power of `z_thresh / z` in the limit: 1 is ZClip's `adaptive_scaling`, infinity its clipping to the `mean`, 0 its
        /// `percentile` (with an `eps` of 0). At least 0; default 1.
        #[serde(with = "number", default = "defaults::falloff")]
        falloff: f64,
        /// Multiplies the limit. Above 0; default 1.
        #[serde(with = "number", default = "defaults::clip_factor")]
        clip_factor: f64,
        /// Whether an outlier leaves the averages as they are; default false. ZClip's `skip_update_on_spike`.
        #[serde(default)]
        skip_update_on_spike: bool,
        /// Whether a norm that is infinite or NaN enters the averages; default false. In the original one NaN turns the guard off for good.
        #[serde(default)]
        original: bool,
    },
    /// Holds a step back whose loss or norm exceeds the mean of the last steps by many standard deviations. OLMo-core's
    /// `SkipStepOptimizer`.
    ///
    /// Begins with half a window of values.
    SkipStep {
        /// How many steps are looked back at. From 2 to 65536; default 128.
        #[serde(default = "defaults::rolling_interval_length")]
        rolling_interval_length: u32,
        /// How many standard deviations above the mean are accepted. Above 0; default 6.
        #[serde(with = "number", default = "defaults::sigma_factor")]
        sigma_factor: f64,
        /// Whether every value enters the window as it is; default false. In the original a loss or norm that is infinite or NaN holds all steps
        /// back until it has left the window, four or five spikes hide the next one, and any rise above equal values is one.
        #[serde(default)]
        original: bool,
    },
    /// Holds a step back whose loss or norm has a z-score above a threshold. llm.c's `OutlierDetector`.
    ///
    /// Begins with a full window. The value that is judged is one of its window, so that no z-score of `n` values exceeds
    /// `(n - 1) / sqrt(n)`.
    Outlier {
        /// How many values a window has. From 3 (with `original` 2) to 65536; default 128.
        #[serde(default = "defaults::window")]
        window: u32,
        /// The highest z-score of a loss that is accepted; 0 for any. Below `(n - 1) / sqrt(n)` for a window of `n`; default 6,
        /// which a window of at least 38 can reach.
        #[serde(with = "number", default = "defaults::skip_update_lossz")]
        skip_update_lossz: f64,
        /// The highest z-score of a norm that is accepted; 0 for any, but not for both. As above; default 6.
        #[serde(with = "number", default = "defaults::skip_update_gradz")]
        skip_update_gradz: f64,
        /// Whether every value enters the window as it is, and running sums; default false. In the original one NaN turns the guard off for good,
        /// rounding errors stay in the sums, three spikes hide the next one, and no value exceeds some thresholds.
        #[serde(default)]
        original: bool,
    },
}

// By hand: the derive refuses an attribute at a field.
impl Config for Guard {}

impl std::fmt::Display for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&config_to_json(self))
    }
}

defaults! {
    alpha: f64 = 0.97;
    z_thresh: f64 = 2.5;
    eps: f64 = 1e-6;
    warmup_steps: u32 = 25;
    falloff: f64 = 1.0;
    clip_factor: f64 = 1.0;
    rolling_interval_length: u32 = 128;
    sigma_factor: f64 = 6.0;
    window: u32 = 128;
    skip_update_lossz: f64 = 6.0;
    skip_update_gradz: f64 = 6.0;
}

/// Values that a window may have: they are host memory, and go into records.
const MAX_WINDOW: u32 = 65536;

impl Guard {
    /// [`ZClip`](Self::ZClip) with its published settings.
    pub fn zclip() -> Self {
        with_defaults("ZClip")
    }

    /// [`SkipStep`](Self::SkipStep) with OLMo-core's settings.
    pub fn skip_step() -> Self {
        with_defaults("SkipStep")
    }

    /// [`Outlier`](Self::Outlier) with llm.c's window and thresholds of 6 (llm.c has none unless asked).
    pub fn outlier() -> Self {
        with_defaults("Outlier")
    }

    /// What the guard does with the losses (none where none is known) and norms of a run: by which factor the gradients of each step
    /// are multiplied. 1: the step is taken as it is. 0: it is rejected. Without tensors, on the host.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] for a setting that is out of its range.
    pub fn replay(
        &self,
        steps: impl IntoIterator<Item = (Option<f64>, f64)>,
    ) -> Result<Vec<f64>, AmpError> {
        let mut state = GuardState::new(*self)?;
        let factors = steps
            .into_iter()
            .map(|(loss, norm)| match state.judge(loss, norm) {
                Verdict::Clip { factor, .. } => factor,
                Verdict::Reject { .. } => 0.0,
                Verdict::Apply | Verdict::Wait => 1.0,
            });
        Ok(factors.collect())
    }

    /// Whether the rule computes as its source, bugs included.
    fn is_original(&self) -> bool {
        let (Self::ZClip { original, .. }
        | Self::SkipStep { original, .. }
        | Self::Outlier { original, .. }) = self;
        *original
    }

    fn check(&self) -> Result<(), AmpError> {
        let above_zero = |field, value: f64| {
            let inside = value > 0.0 && value.is_finite();
            in_range(field, value, inside, "finite and above 0")
        };
        let count = |field, value: u32, least: u32| {
            let allowed = format!("from {least} to {MAX_WINDOW}");
            let inside = (least..=MAX_WINDOW).contains(&value);
            in_range(field, value.into(), inside, &allowed)
        };
        match *self {
            Self::ZClip {
                alpha,
                z_thresh,
                eps,
                warmup_steps,
                falloff,
                clip_factor,
                ..
            } => {
                let inside = (0.0..1.0).contains(&alpha);
                in_range("alpha", alpha, inside, "at least 0 and below 1")?;
                above_zero("z_thresh", z_thresh)?;
                let inside = eps >= 0.0 && eps.is_finite();
                in_range("eps", eps, inside, "finite and at least 0")?;
                count("warmup_steps", warmup_steps, 1)?;
                in_range("falloff", falloff, falloff >= 0.0, "at least 0")?;
                above_zero("clip_factor", clip_factor)
            }
            Self::SkipStep {
                rolling_interval_length,
                sigma_factor,
                ..
            } => {
                count("rolling_interval_length", rolling_interval_length, 2)?;
                above_zero("sigma_factor", sigma_factor)
            }
            Self::Outlier {
                window,
                skip_update_lossz: of_loss,
                skip_update_gradz: of_norm,
                original,
            } => {
                // The others of a window of two are one value, which has no deviation.
                count("window", window, if original { 2 } else { 3 })?;
                check_thresholds(window, of_loss, of_norm, original)
            }
        }
    }
}

/// Refuses thresholds of [`Guard::Outlier`] that no value can exceed, or that accept every value.
fn check_thresholds(
    window: u32,
    of_loss: f64,
    of_norm: f64,
    original: bool,
) -> Result<(), AmpError> {
    let size = f64::from(window);
    let highest = (size - 1.0) / size.sqrt();
    let what = "the highest z-score in a window of";
    let below = format!("at least 0 and below {highest:.3}, {what} {window}");
    let (highest, allowed) = match original {
        true => (f64::MAX, "finite and at least 0"),
        false => (highest, below.as_str()),
    };
    for (field, z) in [
        ("skip_update_lossz", of_loss),
        ("skip_update_gradz", of_norm),
    ] {
        in_range(field, z, (0.0..highest).contains(&z), allowed)?;
    }
    let inside = original || of_loss > 0.0 || of_norm > 0.0;
    let allowed = "above 0, or `skip_update_lossz` must be";
    in_range("skip_update_gradz", of_norm, inside, allowed)
}

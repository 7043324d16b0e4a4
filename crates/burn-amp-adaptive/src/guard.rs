//! Guards: finite steps whose gradient norm or loss is far outside of what was usual are clipped or rejected.

mod hook;
mod state;

use burn::config::{Config, config_to_json};
use serde::{Deserialize, Serialize};

use burn_amp_core::internal::{in_range, number, settings};
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
/// spikes do not hide the next ones, and a new level is accepted after some steps. (In the sources one NaN turns
/// [`ZClip`](Self::ZClip) and [`Outlier`](Self::Outlier) off for good.)
///
/// A Burn [`Config`]: put it into your program's configuration. In JSON, a setting that is not named has its default, and an unknown one is an error.
///
/// ```
/// use burn::optim::SgdConfig;
/// use burn_amp::{GradientClip, MixedPrecision, ScaledOptimizer, adaptive::{Guard, SkipStep}};
///
/// let amp = MixedPrecision::f16();
/// let optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp)
///     .with_clipping(GradientClip::GlobalNorm(1.0))
///     .with_hook(Guard::zclip());
/// # let _ = optim;
///
/// // What a guard would have done with the losses and norms of a run: the last step is rejected.
/// let usual = (0..20).map(|step| (None, 1.0 + 0.01 * f64::from(step % 3)));
/// let guard = Guard::SkipStep(SkipStep::new().with_rolling_interval_length(16));
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
    ZClip(ZClip),
    /// Holds a step back whose loss or norm exceeds the mean of the last steps by many standard deviations. OLMo-core's
    /// `SkipStepOptimizer`.
    ///
    /// Begins with half a window of values.
    SkipStep(SkipStep),
    /// Holds a step back whose loss or norm has a z-score above a threshold. llm.c's `OutlierDetector`.
    ///
    /// Begins with a full window. The value that is judged is one of its window, so that no z-score of `n` values exceeds
    /// `(n - 1) / sqrt(n)`.
    Outlier(Outlier),
}

settings! {
    /// The settings of [`Guard::ZClip`].
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    ZClip:
    /// The weight of the averages so far; that of a new norm is 1 less this. At least 0 and below 1; default 0.97.
    #[serde(with = "number")]
    alpha, with_alpha: f64 = 0.97,
    /// The z-score above which a norm is an outlier. Above 0; default 2.5.
    #[serde(with = "number")]
    z_thresh, with_z_thresh: f64 = 2.5,
    /// Is added to the standard deviation. At least 0; default 1e-6.
    #[serde(with = "number")]
    eps, with_eps: f64 = 1e-6,
    /// Steps whose plain mean and variance begin the averages, and which are not limited. From 1 to 65536; default 25.
    warmup_steps, with_warmup_steps: u32 = 25,
    /// The power of `z_thresh / z` in the limit: 1 is ZClip's `adaptive_scaling`, infinity its clipping to the `mean`, 0 its
    /// `percentile` (with an `eps` of 0). At least 0; default 1.
    #[serde(with = "number")]
    falloff, with_falloff: f64 = 1.0,
    /// Multiplies the limit. Above 0; default 1.
    #[serde(with = "number")]
    clip_factor, with_clip_factor: f64 = 1.0,
    /// An outlier leaves the averages as they are; default false. ZClip's `skip_update_on_spike`.
    skip_update_on_spike, with_skip_update_on_spike: bool = false,
}

settings! {
    /// The settings of [`Guard::SkipStep`].
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    SkipStep:
    /// The number of steps that are looked back at. From 2 to 65536; default 128.
    rolling_interval_length, with_rolling_interval_length: u32 = 128,
    /// The number of standard deviations above the mean that is accepted. Above 0; default 6.
    #[serde(with = "number")]
    sigma_factor, with_sigma_factor: f64 = 6.0,
}

settings! {
    /// The settings of [`Guard::Outlier`].
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    Outlier:
    /// The number of values in a window. From 3 to 65536; default 128.
    window, with_window: u32 = 128,
    /// The highest z-score of a loss that is accepted; 0 for any. Below `(n - 1) / sqrt(n)` for a window of `n`; default 6,
    /// which a window of at least 38 can reach.
    #[serde(with = "number")]
    skip_update_lossz, with_skip_update_lossz: f64 = 6.0,
    /// The highest z-score of a norm that is accepted, in the same range; 0 for any, but not for both. Default 6.
    #[serde(with = "number")]
    skip_update_gradz, with_skip_update_gradz: f64 = 6.0,
}

// By hand: the derive would bring a serde of its own.
impl Config for Guard {}

impl std::fmt::Display for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&config_to_json(self))
    }
}

/// Values that a window may have: they are host memory, and go into records.
const MAX_WINDOW: u32 = 65536;

impl Guard {
    /// [`ZClip`](Self::ZClip) with its published settings.
    pub fn zclip() -> Self {
        Self::ZClip(ZClip::new())
    }

    /// [`SkipStep`](Self::SkipStep) with OLMo-core's settings.
    pub fn skip_step() -> Self {
        Self::SkipStep(SkipStep::new())
    }

    /// [`Outlier`](Self::Outlier) with llm.c's window and thresholds of 6 (llm.c has none unless asked).
    pub fn outlier() -> Self {
        Self::Outlier(Outlier::new())
    }

    /// Replays the losses (none where none is known) and norms of a run: returns the factors by which the guard multiplies the gradients of each
    /// step. 1: the step is taken as it is. 0: it is rejected. Without tensors, on the host.
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

    fn check(&self) -> Result<(), AmpError> {
        match self {
            Self::ZClip(settings) => settings.check(),
            Self::SkipStep(settings) => settings.check(),
            Self::Outlier(settings) => settings.check(),
        }
    }
}

impl ZClip {
    fn check(&self) -> Result<(), AmpError> {
        let inside = (0.0..1.0).contains(&self.alpha);
        in_range("alpha", self.alpha, inside, "at least 0 and below 1")?;
        check_above_zero("z_thresh", self.z_thresh)?;
        let inside = self.eps >= 0.0 && self.eps.is_finite();
        in_range("eps", self.eps, inside, "finite and at least 0")?;
        check_window("warmup_steps", self.warmup_steps, 1)?;
        in_range("falloff", self.falloff, self.falloff >= 0.0, "at least 0")?;
        check_above_zero("clip_factor", self.clip_factor)
    }
}

impl SkipStep {
    fn check(&self) -> Result<(), AmpError> {
        check_window("rolling_interval_length", self.rolling_interval_length, 2)?;
        check_above_zero("sigma_factor", self.sigma_factor)
    }
}

impl Outlier {
    /// Refuses thresholds that no value can exceed, or that accept every value.
    fn check(&self) -> Result<(), AmpError> {
        let (window, of_loss, of_norm) =
            (self.window, self.skip_update_lossz, self.skip_update_gradz);
        // The others of a window of two are one value, which has no deviation.
        check_window("window", window, 3)?;
        let size = f64::from(window);
        let highest = (size - 1.0) / size.sqrt();
        let what = "the highest z-score in a window of";
        let allowed = format!("at least 0 and below {highest:.3}, {what} {window}");
        for (field, z) in [
            ("skip_update_lossz", of_loss),
            ("skip_update_gradz", of_norm),
        ] {
            in_range(field, z, (0.0..highest).contains(&z), &allowed)?;
        }
        let allowed = "above 0, or `skip_update_lossz` must be";
        let inside = of_loss > 0.0 || of_norm > 0.0;
        in_range("skip_update_gradz", of_norm, inside, allowed)
    }
}

fn check_above_zero(field: &'static str, value: f64) -> Result<(), AmpError> {
    let inside = value > 0.0 && value.is_finite();
    in_range(field, value, inside, "finite and above 0")
}

fn check_window(field: &'static str, value: u32, least: u32) -> Result<(), AmpError> {
    let allowed = format!("from {least} to {MAX_WINDOW}");
    let inside = (least..=MAX_WINDOW).contains(&value);
    in_range(field, value.into(), inside, &allowed)
}

//! What a part of a network multiplies its gradients by, beside the loss scale: [`Rescale`].

use std::sync::Arc;

use crate::error::{AmpError, in_range};
use crate::scale::adaloss::{AdaLoss, LIMIT};
use crate::scale::loss_scale::{GradScalerConfig, LossScale};

/// What [`rescaled`](crate::rescaled) multiplies gradients by: a power of two that is fixed, or a factor that moves by a rule.
///
/// A [`power_of_two`](Self::power_of_two) stays as it is. The others have a name and a state, which all openings of one name share. It lives beside the
/// loss scale of the [`MixedPrecision`](crate::MixedPrecision), moves with its steps, and is in its records. Name parts after what they are: a
/// name is found again in a record, the order in which parts are opened may change.
///
/// ```
/// use burn_amp::{GradScalerConfig, Rescale};
///
/// let fixed = Rescale::power_of_two(12); // 2^12
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
    pub(crate) schedule: LossScale,
    pub(crate) adaloss: Option<AdaLoss>,
}

impl Rescale {
    /// The factor 2^exponent, which stays as it is. An exponent below -126 or above 126 is refused by the scope in which the part opens, with
    /// [`AmpError::InvalidValue`].
    pub const fn power_of_two(exponent: i32) -> Self {
        Self(Rule::Fixed(exponent))
    }

    /// A factor that moves by a schedule of its own, from 1: PyTorch's, or another by [`with_scaler`](Self::with_scaler). Layer by layer, that is FairScale's `LayerwiseGradientScaler`.
    ///
    /// It backs off where the gradient overflows in this part first, and grows after finite steps. Where no loss scale is in use, or its own
    /// settings are not [`enabled`](GradScalerConfig::enabled), it is 1.
    pub fn dynamic(part: impl Into<Arc<str>>) -> Self {
        let config = GradScalerConfig::new().with_init_scale(1.0);
        Self::driven(part.into(), config, None)
    }

    /// A factor from the statistics of the gradient that comes to the part: AdaLoss (Zhao et al., "Adaptive Loss Scaling", 2019).
    ///
    /// After each finite step it is the least power of two, up to 16, at which no more than a thousandth of normally distributed values would
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
            let value = format!("`{}`", schedule.rule_name());
            return Err(AmpError::refused("schedule", value, "another for a part"));
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
        let value = match &self.0 {
            Rule::Fixed(exponent) => format!("a setting of the factor 2^{exponent}"),
            Rule::Driven(driven) => format!("a setting of part `{}`", driven.name),
        };
        AmpError::refused(field, value, allowed)
    }
}

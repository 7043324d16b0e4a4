//! The wishes of a program for a part of its forward pass: [`Region`], and [`Rescale`], which programs make.

use std::sync::Arc;

use crate::error::AmpError;
use crate::scale::loss_scale::{GradScalerConfig, LossScale};

/// A part of the forward pass as a program wants it; what it does not say is as around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Region {
    /// Its name, by which others may decide what happens in it, and under which its factor is kept.
    pub(crate) name: Option<Arc<str>>,
    /// Set where it is in f32, with plain parameters.
    pub(crate) is_f32: bool,
    /// The further multiple of its gradients.
    pub(crate) factor: Factor,
}

/// The multiple of the gradients in a region, beside the loss scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Factor {
    /// No such multiple.
    #[default]
    One,
    /// A power of two.
    Fixed(i32),
    /// A factor that begins and moves so.
    Moving(Arc<LossScale>),
}

/// The factor of [`rescaled`](crate::rescaled), which multiplies gradients: a power of two that is fixed, or a factor that moves by a rule.
///
/// A [`power_of_two`](Self::power_of_two) stays as it is. The others have a name and a state. Regions with the same name share a state. It lives beside the
/// loss scale of the [`MixedPrecision`](crate::MixedPrecision), moves with its steps, and is in its records. Name regions after what they are: a
/// name is found again in a record, the order in which regions are opened may change.
///
/// ```
/// use burn_amp::{GradScalerConfig, Rescale};
///
/// let fixed = Rescale::power_of_two(12); // 2^12
/// let dynamic = Rescale::dynamic("trunk"); // from 1, by PyTorch's rule
/// let eager = Rescale::dynamic("trunk")
///     .with_scaler(GradScalerConfig::new().with_init_scale(1.0).with_growth_interval(100))?;
/// # let _ = (fixed, dynamic, eager);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rescale(pub(crate) Region);

impl Region {
    /// A region of this name that is as all around it.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::default()
        }
    }
}

impl Rescale {
    /// The factor 2^exponent, which stays as it is. An exponent below -126 or above 126 is refused by the scope in which the region opens, with
    /// [`AmpError::InvalidValue`].
    pub const fn power_of_two(exponent: i32) -> Self {
        Self(Region {
            name: None,
            is_f32: false,
            factor: Factor::Fixed(exponent),
        })
    }

    /// A factor that moves by a schedule of its own, from 1: PyTorch's, or another by [`with_scaler`](Self::with_scaler). Layer by layer, that is FairScale's `LayerwiseGradientScaler`.
    ///
    /// It backs off where the gradient overflows in this region first, and grows after finite steps. Where no loss scale is in use, or its own
    /// settings are not [`enabled`](GradScalerConfig::enabled), it is 1.
    pub fn dynamic(name: impl Into<Arc<str>>) -> Self {
        let config = GradScalerConfig::new().with_init_scale(1.0);
        let schedule = config.schedule().expect("the defaults are valid");
        Self(Region {
            factor: Factor::Moving(schedule.into()),
            ..Region::named(name)
        })
    }

    /// Takes other settings, and the schedule that they name, in place of any rule before: AdaLoss, too, is gone then. Scales in them are factors of this region:
    /// its `init_scale` is most often 1.
    ///
    /// `max_consecutive_skips` and `parameter_dtype_gradients` count in the settings of the [`MixedPrecision`](crate::MixedPrecision) alone. Without
    /// `enabled` the factor is 1.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], as [`GradScalerConfig::schedule`], and for a fixed factor. [`Schedule::NearTop`](crate::Schedule::NearTop) is refused: values near the
    /// top are not counted where gradients come to regions.
    pub fn with_scaler(self, config: GradScalerConfig) -> Result<Self, AmpError> {
        self.change_schedule("with_scaler", config.schedule()?)
    }

    /// Takes another schedule, its settings and its [rule](crate::schedule::Rule) included. It is shown the gradients that come to this region, with
    /// the loss scale and the factors of regions that enclose it, but without its own. A record of a region that was not opened yet cannot be
    /// checked by the rule when it is loaded: a state that the rule refuses starts again then, with a warning.
    ///
    /// # Errors
    ///
    /// As [`with_scaler`](Self::with_scaler) and [`MixedPrecision::with_schedule`](crate::MixedPrecision::with_schedule), and for a rule that counts values
    /// near the top.
    pub fn with_schedule(self, schedule: LossScale) -> Result<Self, AmpError> {
        self.change_schedule("with_schedule", schedule.check_rule()?)
    }

    fn change_schedule(
        mut self,
        field: &'static str,
        schedule: LossScale,
    ) -> Result<Self, AmpError> {
        if schedule.count_from().is_some() {
            let value = format!("`{}`", schedule.rule_name());
            return Err(AmpError::refused("schedule", value, "another for a region"));
        }
        if let Factor::Fixed(exponent) = self.0.factor {
            let value = format!("a setting of the factor 2^{exponent}");
            let allowed = "a setting of a region that has a name";
            return Err(AmpError::refused(field, value, allowed));
        }
        self.0.factor = Factor::Moving(schedule.into());
        Ok(self)
    }
}

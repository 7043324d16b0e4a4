use burn::{
    config::Config,
    module::{ParamGroup, ParamId},
};
use serde::{Deserialize, Serialize};

use crate::error::AmpError;

/// One way to clip gradients, as Burn's `GradientClippingConfig`, with the global norm beside it.
///
/// The threshold is in the unit of the unscaled gradients. It is positive; infinity, `"inf"` in JSON, measures and never
/// clips. Clipping by a norm is from "On the difficulty of training recurrent neural networks" (Pascanu et al., 2013).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GradientClipConfig {
    /// Every value is limited to `-threshold..=threshold`. Keras's `clipvalue`, `torch.nn.utils.clip_grad_value_`.
    Value(#[serde(with = "super::threshold")] f64),
    /// Each parameter's gradient whose L2 norm exceeds the threshold is shortened to it. Keras's `clipnorm`.
    Norm(#[serde(with = "super::threshold")] f64),
    /// All gradients of the group, as one vector, are multiplied by `threshold / (norm + 1e-6)` where that is below 1.
    /// `torch.nn.utils.clip_grad_norm_`, whose 1e-6 is kept; Keras's `global_clipnorm`, DeepSpeed's `gradient_clipping`.
    GlobalNorm(#[serde(with = "super::threshold")] f64),
}

// By hand: the derive refuses an attribute at a threshold.
impl Config for GradientClipConfig {}

impl std::fmt::Display for GradientClipConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&burn::config::config_to_json(self))
    }
}

impl GradientClipConfig {
    /// Checks the threshold and clips all parameters so.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN.
    pub fn init(&self) -> Result<GradientClip, AmpError> {
        GradientClip::groups().with_group(ParamGroup::all(), self.clone())
    }

    fn check(&self) -> Result<(), AmpError> {
        let (field, threshold) = match self {
            Self::Value(threshold) => ("clip value", *threshold),
            Self::Norm(threshold) => ("clip norm", *threshold),
            Self::GlobalNorm(threshold) => ("clip global norm", *threshold),
        };
        // A NaN is not above zero either.
        if threshold > 0.0 {
            Ok(())
        } else {
            Err(AmpError::invalid(field, threshold, "above 0"))
        }
    }
}

/// How the gradients of one group of parameters are clipped: an entry of
/// [`ScaledOptimizerConfig::clip_groups`](crate::ScaledOptimizerConfig).
#[derive(Config, Debug)]
pub struct ClipGroup {
    /// The parameters, by path or id.
    pub group: ParamGroup,
    /// What is done with their gradients.
    pub clip: GradientClipConfig,
}

/// How gradients are clipped, group by group. Used by [`UnscaledGradients::clip`](crate::UnscaledGradients::clip) and
/// [`ScaledOptimizer::with_clipping`](crate::ScaledOptimizer::with_clipping).
///
/// A parameter that matches several groups follows the one that was added last, as with Burn's
/// `ModuleOptimizer::with_group`; one that matches none is not clipped. A global norm is that of its group alone.
///
/// ```
/// use burn::module::ParamGroup;
/// use burn_amp::{GradientClip, GradientClipConfig};
///
/// // The head's values are limited; all other gradients are one vector.
/// let clip = GradientClip::by_global_norm(1.0)?
///     .with_group(ParamGroup::from_predicate("head"), GradientClipConfig::Value(0.1))?;
///
/// let error = GradientClip::by_norm(0.0).unwrap_err();
/// assert_eq!(error.to_string(), "`clip norm` is 0, but must be above 0");
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GradientClip {
    pub(super) rules: Vec<(ParamGroup, GradientClipConfig)>,
}

impl GradientClip {
    /// Limits every value to `-threshold..=threshold`.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN.
    pub fn by_value(threshold: f64) -> Result<Self, AmpError> {
        GradientClipConfig::Value(threshold).init()
    }

    /// Limits the L2 norm of each parameter's gradient.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN.
    pub fn by_norm(max_norm: f64) -> Result<Self, AmpError> {
        GradientClipConfig::Norm(max_norm).init()
    }

    /// Limits the L2 norm of all gradients as one vector.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN.
    pub fn by_global_norm(max_norm: f64) -> Result<Self, AmpError> {
        GradientClipConfig::GlobalNorm(max_norm).init()
    }

    /// Clips nothing, until groups are added.
    pub fn groups() -> Self {
        Self { rules: Vec::new() }
    }

    /// Clips the parameters of a group in a way of their own; the last group that matches counts.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if the threshold is zero, negative or NaN.
    pub fn with_group(
        mut self,
        group: ParamGroup,
        clip: GradientClipConfig,
    ) -> Result<Self, AmpError> {
        clip.check()?;
        self.rules.push((group, clip));
        Ok(self)
    }

    /// The rule of a parameter, by its number.
    pub(super) fn rule(&self, id: ParamId, path: &str) -> Option<usize> {
        let rules = self.rules.iter();
        rules
            .enumerate()
            .rev()
            .find(|(_, (group, _))| group.matches(&id, Some(path)))
            .map(|(index, _)| index)
    }
}

use burn::{config::Config, optim::ModuleOptimizer};

use super::{InnerOptimizerConfig, ScaledOptimizer};
use crate::{
    ema::EmaConfig,
    error::AmpError,
    gradients::{AccumulationConfig, ClipGroup, GradientClip, GradientClipConfig},
    loss_scale::InvalidValue,
    scaler::{GradScalerConfig, ModuleOptim},
};

/// All of a [`ScaledOptimizer`] in one Burn [`Config`], saved to and loaded from JSON: the optimizer, the loss scale, and
/// what stands around a step.
///
/// What Keras's `LossScaleOptimizer` takes, under Burn's names. Weight decay is the inner optimizer's.
///
/// ```
/// use burn::{config::Config, optim::AdamWConfig};
/// use burn_amp::{
///     AccumulationConfig, EmaConfig, GradScalerConfig, GradientClipConfig, ScaledOptimizerConfig,
/// };
///
/// let config = ScaledOptimizerConfig::new(AdamWConfig::new().with_weight_decay(0.01).into())
///     .with_scaler(GradScalerConfig::new().with_growth_interval(500))
///     .with_clip(Some(GradientClipConfig::GlobalNorm(1.0)))
///     .with_accumulation(Some(AccumulationConfig::new(4)))
///     .with_ema(Some(EmaConfig::new().with_momentum(0.999)));
/// let optim = config.init()?;
/// assert_eq!(optim.window().unwrap().config().micro_batches, 4);
///
/// let path = std::env::temp_dir().join(format!("scaled-optimizer-{}.json", std::process::id()));
/// config.save(&path)?;
/// let same = ScaledOptimizerConfig::load(&path)?;
/// assert_eq!(same.to_string(), config.to_string());
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Config, Debug)]
pub struct ScaledOptimizerConfig {
    /// The inner optimizer, with its weight decay.
    pub optimizer: InnerOptimizerConfig,
    /// The loss scale.
    #[config(default = "GradScalerConfig::new()")]
    pub scaler: GradScalerConfig,
    /// A constant loss scale in place of the scaler's schedule: Keras's `loss_scale_factor`. Positive.
    pub loss_scale_factor: Option<f64>,
    /// How the gradients of all parameters are clipped.
    pub clip: Option<GradientClipConfig>,
    /// How those of some parameters are clipped instead; the last that matches counts.
    pub clip_groups: Option<Vec<ClipGroup>>,
    /// Micro-batches to a step.
    pub accumulation: Option<AccumulationConfig>,
    /// Averages of the weights.
    pub ema: Option<EmaConfig>,
}

impl ScaledOptimizerConfig {
    /// Checks the settings and builds the optimizer and all that is around it.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range.
    pub fn init(&self) -> Result<ScaledOptimizer<ModuleOptimizer>, AmpError> {
        self.wrap(self.optimizer.init())
    }

    /// The same around an optimizer of the caller's (with groups, with [`MasterWeights`](super::MasterWeights)), in place
    /// of the configured one.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init).
    pub fn wrap<O: ModuleOptim>(&self, optim: O) -> Result<ScaledOptimizer<O>, AmpError> {
        let mut scaler = self.scaler.clone();
        if let Some(factor) = self.loss_scale_factor {
            if !(factor > 0.0 && (factor as f32).is_finite() && factor as f32 > 0.0) {
                let allowed = "positive and finite as an f32";
                return Err(InvalidValue::new("loss_scale_factor", factor, allowed).into());
            }
            scaler = scaler.with_dynamic(false).with_init_scale(factor);
        }
        let mut optim = ScaledOptimizer::new(optim, scaler.init()?);
        let mut clip = match &self.clip {
            Some(clip) => clip.init()?,
            None => GradientClip::groups(),
        };
        let groups = self.clip_groups.as_deref().unwrap_or_default();
        for ClipGroup { group, clip: rule } in groups {
            clip = clip.with_group(group.clone(), rule.clone())?;
        }
        if self.clip.is_some() || !groups.is_empty() {
            optim = optim.with_clipping(clip);
        }
        if let Some(accumulation) = &self.accumulation {
            optim = optim.with_accumulation(accumulation.clone())?;
        }
        if let Some(ema) = &self.ema {
            optim = optim.with_ema(ema.clone())?;
        }
        Ok(optim)
    }
}

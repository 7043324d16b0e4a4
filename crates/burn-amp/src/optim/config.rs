use burn::{config::Config, module::ParamGroup, optim::ModuleOptimizer};

use super::{InnerOptimizerConfig, ScaledOptimizer};
use crate::{
    accumulation::AccumulationConfig,
    clip::GradientClip,
    ema::EmaConfig,
    error::AmpError,
    loss_scale::InvalidValue,
    mixed_precision::MixedPrecision,
    scaler::{GradScaler, GradScalerConfig, ModuleOptim},
};

/// All of a [`ScaledOptimizer`] in one Burn [`Config`], saved to and loaded from JSON: the optimizer, the loss scale, and
/// what stands around a step.
///
/// What Keras's `LossScaleOptimizer` takes, under Burn's names. Weight decay is the inner optimizer's.
///
/// ```
/// use burn::{config::Config, optim::AdamWConfig};
/// use burn_amp::{
///     AccumulationConfig, EmaConfig, GradScalerConfig, GradientClip, ScaledOptimizerConfig,
/// };
///
/// let config = ScaledOptimizerConfig::new(AdamWConfig::new().with_weight_decay(0.01).into())
///     .with_scaler(GradScalerConfig::new().with_growth_interval(500))
///     .with_clip(Some(GradientClip::GlobalNorm(1.0)))
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
    /// A constant loss scale in place of the scaler's schedule: Keras's `loss_scale_factor`. Positive, and within the
    /// scaler's `min_scale` and `max_scale`.
    pub loss_scale_factor: Option<f64>,
    /// How the gradients of all parameters are clipped.
    pub clip: Option<GradientClip>,
    /// How those of some parameters are clipped instead; the last that matches counts.
    #[config(default = "Vec::new()")]
    pub clip_groups: Vec<(ParamGroup, GradientClip)>,
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
        self.optimizer.check()?;
        self.wrap(self.optimizer.init())
    }

    /// The same with the loss scale of a [`MixedPrecision`], which has these settings.
    ///
    /// ```
    /// use burn::optim::AdamConfig;
    /// use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizerConfig};
    ///
    /// let config = ScaledOptimizerConfig::new(AdamConfig::new().into())
    ///     .with_scaler(GradScalerConfig::new().with_growth_interval(500));
    /// let amp = MixedPrecision::f16().with_scaler(config.scaler.clone())?;
    /// let optim = config.init_with(&amp)?;
    /// # let _ = optim;
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init), and [`AmpError::InvalidValue`] if the settings of `amp` are others.
    pub fn init_with(
        &self,
        amp: &MixedPrecision,
    ) -> Result<ScaledOptimizer<ModuleOptimizer>, AmpError> {
        if self.scaler_config() != *amp.config() {
            let allowed = "the settings of the `MixedPrecision`: give it these by `MixedPrecision::with_scaler`";
            return Err(InvalidValue::new("scaler", "other settings", allowed).into());
        }
        self.around(ScaledOptimizer::new(self.optimizer.init(), amp))
    }

    /// The same around an optimizer of the caller's (with groups, with [`MasterWeights`](super::MasterWeights)), in place
    /// of the configured one.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init).
    pub fn wrap<O: ModuleOptim>(&self, optim: O) -> Result<ScaledOptimizer<O>, AmpError> {
        self.around(ScaledOptimizer::new(optim, self.init_scaler()?))
    }

    fn around<O: ModuleOptim>(
        &self,
        mut optim: ScaledOptimizer<O>,
    ) -> Result<ScaledOptimizer<O>, AmpError> {
        if let Some(clip) = self.clip {
            optim = optim.with_clipping(clip)?;
        }
        for (group, clip) in &self.clip_groups {
            optim = optim.with_group_clipping(group.clone(), *clip)?;
        }
        if let Some(accumulation) = &self.accumulation {
            optim = optim.with_accumulation(accumulation.clone())?;
        }
        if let Some(ema) = &self.ema {
            optim = optim.with_ema(ema.clone())?;
        }
        Ok(optim)
    }

    fn init_scaler(&self) -> Result<GradScaler, AmpError> {
        match (self.scaler_config().init(), self.loss_scale_factor) {
            // The factor stands in for the initial scale: an error names what the user has set.
            (Err(AmpError::InvalidValue(error)), Some(factor)) if error.field() == "init_scale" => {
                Err(InvalidValue::new("loss_scale_factor", factor, error.allowed()).into())
            }
            (result, _) => result,
        }
    }

    fn scaler_config(&self) -> GradScalerConfig {
        let scaler = self.scaler.clone();
        match self.loss_scale_factor {
            Some(factor) => scaler.with_dynamic(false).with_init_scale(factor),
            None => scaler,
        }
    }
}

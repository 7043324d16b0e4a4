use burn::{config::Config, module::ParamGroup};

use crate::{
    ema::EmaConfig, error::AmpError, gradients::clip::GradientClip, guard::Guard,
    optimizer::ScaledOptimizer, scale::loss_scale::GradScalerConfig, scaler::GradScaler,
    scaler::accumulation::AccumulationConfig, update::module_optim::ModuleOptim,
};

/// What a [`ScaledOptimizer`] adds to an optimizer, in one Burn [`Config`] that is saved to and loaded from JSON: the loss scale,
/// clipping, a guard, accumulation and averages.
///
/// What Keras's `LossScaleOptimizer` takes, under Burn's names. Put it into your program's
/// configuration, beside that of the optimizer, which has the weight decay.
///
/// ```
/// use burn::{config::Config, optim::AdamWConfig};
/// use burn_amp::{AccumulationConfig, EmaConfig, GradScalerConfig, MixedPrecision, ScaledOptimizerConfig};
///
/// #[derive(Config, Debug)]
/// struct TrainingConfig {
///     optimizer: AdamWConfig,
///     scaled: ScaledOptimizerConfig,
/// }
///
/// let scaled = ScaledOptimizerConfig::new()
///     .with_scaler(GradScalerConfig::new().with_growth_interval(500))
///     .with_accumulation(Some(AccumulationConfig::new(4)))
///     .with_ema(Some(EmaConfig::new().with_momentum(0.999)));
/// let config = TrainingConfig::new(AdamWConfig::new().with_weight_decay(0.01), scaled);
///
/// let amp = MixedPrecision::f16().with_scaler(config.scaled.scaler.clone())?;
/// let optim = config.scaled.init(config.optimizer.init(), &amp)?;
/// assert_eq!(optim.window().unwrap().config().micro_batches, 4);
///
/// let path = std::env::temp_dir().join(format!("training-{}.json", std::process::id()));
/// config.save(&path)?;
/// let same = TrainingConfig::load(&path)?;
/// assert_eq!(same.to_string(), config.to_string());
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Config, Debug)]
pub struct ScaledOptimizerConfig {
    /// The loss scale, for [`MixedPrecision::with_scaler`](crate::MixedPrecision::with_scaler), or for
    /// [`GradScalerConfig::init`] where parameters are in half precision.
    #[config(default = "GradScalerConfig::new()")]
    pub scaler: GradScalerConfig,
    /// How the gradients of all parameters are clipped.
    pub clip: Option<GradientClip>,
    /// How those of some parameters are clipped instead; the last that matches counts.
    #[config(default = "Vec::new()")]
    pub clip_groups: Vec<(ParamGroup, GradientClip)>,
    /// What is done about steps far outside of what was usual.
    pub guard: Option<Guard>,
    /// Micro-batches to a step.
    pub accumulation: Option<AccumulationConfig>,
    /// Averages of the weights.
    pub ema: Option<EmaConfig>,
}

impl Default for ScaledOptimizerConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl ScaledOptimizerConfig {
    /// Checks the settings and puts them around an optimizer: Burn's own (`AdamConfig::init`, with its groups),
    /// [`MasterWeights`](crate::MasterWeights), or your own.
    ///
    /// `scaler` is what [`ScaledOptimizer::new`] takes: a [`MixedPrecision`](crate::MixedPrecision) with the settings of
    /// [`scaler`](Self::scaler), or, for parameters in half precision, `config.scaler.init()?`.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range; also if `scaler` has other settings
    /// than these.
    pub fn init<O: ModuleOptim>(
        &self,
        optim: O,
        scaler: impl Into<GradScaler>,
    ) -> Result<ScaledOptimizer<O>, AmpError> {
        let scaler = scaler.into();
        self.scaler.schedule()?;
        if scaler.config() != self.scaler {
            let allowed = "with these settings: make it by `MixedPrecision::with_scaler(config.scaler)`, or by `config.scaler.init()`";
            return Err(AmpError::refused(
                "scaler",
                "one with other settings",
                allowed,
            ));
        }
        let mut optim = ScaledOptimizer::new(optim, scaler);
        if let Some(clip) = self.clip {
            optim = optim.with_clipping(clip);
        }
        for (group, clip) in &self.clip_groups {
            optim = optim.with_group_clipping(group.clone(), *clip);
        }
        if let Some(guard) = self.guard {
            optim = optim.with_guard(guard);
        }
        if let Some(accumulation) = &self.accumulation {
            optim = optim.with_accumulation(accumulation.clone());
        }
        if let Some(ema) = &self.ema {
            optim = optim.with_ema(ema.clone());
        }
        optim.check_settings()?;
        Ok(optim)
    }
}

use burn::{module::ParamGroup, tensor::FloatDType};
use serde::{Deserialize, Serialize};

use crate::scale::loss_scale::GradScalerConfig;
use crate::settings;
use crate::{
    border::MixedPrecision, ema::EmaConfig, error::AmpError, gradients::GradientClip,
    optimizer::ScaledOptimizer, scaler::Scaler, scaler::accumulation::AccumulationConfig,
    update::ModuleOptim,
};

settings! {
    /// The settings that a [`ScaledOptimizer`] adds to an optimizer, in one Burn [`Config`](burn::config::Config) that is saved to and loaded from JSON: the precision, the loss
    /// scale, clipping, accumulation and averages. Hooks of other crates have settings of their own, and are given to
    /// [`with_hook`](ScaledOptimizer::with_hook) then.
    ///
    /// What Keras's `LossScaleOptimizer` takes, under Burn's names. Put it into your program's
    /// configuration, beside that of the optimizer, which has the weight decay.
    ///
    /// ```
    /// use burn::{config::Config, optim::AdamWConfig};
    /// use burn_amp::{AccumulationConfig, EmaConfig, GradScalerConfig, ScaledOptimizerConfig};
    ///
    /// #[derive(Config, Debug)]
    /// struct TrainingConfig {
    ///     optimizer: AdamWConfig,
    ///     scaled: ScaledOptimizerConfig,
    /// }
    ///
    /// let scaled = ScaledOptimizerConfig::new()
    ///     .with_scaler(Some(GradScalerConfig::new().with_growth_interval(500)))
    ///     .with_accumulation(Some(AccumulationConfig::new(4)))
    ///     .with_ema(Some(EmaConfig::new().with_momentum(0.999)));
    /// let config = TrainingConfig::new(AdamWConfig::new().with_weight_decay(0.01), scaled);
    ///
    /// let amp = config.scaled.precision()?;
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
    ///
    /// A setting that the JSON does not name has its default, and an unknown name is an error. `accumulation` names all of its settings, as Burn's
    /// own configurations do.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    ScaledOptimizerConfig:
    /// The precision in which scopes compute; default f16. Of no effect where parameters are in half precision themselves.
    precision, with_precision: FloatDType = FloatDType::F16,
    /// The loss scale; default none: that of the precision, which is PyTorch's for f16, stays at 1 for bf16, and is off for f32.
    scaler, with_scaler: Option<GradScalerConfig> = None,
    /// The clipping of the gradients of all parameters; default none.
    clip, with_clip: Option<GradientClip> = None,
    /// The clipping of some parameters instead; the last that matches counts.
    clip_groups, with_clip_groups: Vec<(ParamGroup, GradientClip)> = Vec::new(),
    /// Micro-batches to a step; default none.
    accumulation, with_accumulation: Option<AccumulationConfig> = None,
    /// Averages of the weights; default none.
    ema, with_ema: Option<EmaConfig> = None,
}

impl ScaledOptimizerConfig {
    /// The precision of these settings, with its loss scale, as a new handle: for the model's scopes, and for [`init`](Self::init).
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] for a setting of the scaler, as [`MixedPrecision::with_scaler`].
    pub fn precision(&self) -> Result<MixedPrecision, AmpError> {
        let amp = MixedPrecision::new(self.precision);
        match self.scaler {
            Some(scaler) => amp.with_scaler(scaler),
            None => Ok(amp),
        }
    }

    /// Checks the settings and puts them around an optimizer: Burn's own (`AdamConfig::init`, with its groups),
    /// `MasterWeights`, or your own.
    ///
    /// `scaler` is what [`ScaledOptimizer::new`] takes: the handle that [`precision`](Self::precision) has made, which has the settings of the
    /// scaler; or, for parameters in half precision, a `GradScaler`.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], which names the field, its value and the allowed range: also where these settings have a scaler, and the
    /// one given here has others.
    pub fn init<O: ModuleOptim>(
        &self,
        optim: O,
        scaler: impl Into<Scaler>,
    ) -> Result<ScaledOptimizer<O>, AmpError> {
        let scaler = scaler.into();
        if self.scaler.is_some_and(|config| config != scaler.config()) {
            let twice = "set here and, differently, on the handle";
            let once = "set once: make the handle by `precision()`";
            return Err(AmpError::refused("scaler", twice, once));
        }
        let mut optim = ScaledOptimizer::new(optim, scaler);
        if let Some(clip) = self.clip {
            optim = optim.with_clipping(clip);
        }
        for (group, clip) in &self.clip_groups {
            optim = optim.with_group_clipping(group.clone(), *clip);
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

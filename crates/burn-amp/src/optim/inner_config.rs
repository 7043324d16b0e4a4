use burn::{
    config::Config,
    optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig,
        LionConfig, ModuleOptimizer, MuonConfig, RmsPropConfig, SgdConfig,
    },
};

use crate::error::AmpError;

/// The configuration of one of Burn's optimizers, to be saved with what is around it.
///
/// ```
/// use burn::optim::AdamWConfig;
/// use burn_amp::InnerOptimizerConfig;
///
/// let config = InnerOptimizerConfig::from(AdamWConfig::new().with_weight_decay(0.01));
/// let optim = config.init(); // Burn's ModuleOptimizer
/// # let _ = optim;
/// ```
#[derive(Config, Debug)]
pub enum InnerOptimizerConfig {
    /// [`AdaGradConfig`].
    AdaGrad(AdaGradConfig),
    /// [`AdafactorConfig`].
    Adafactor(AdafactorConfig),
    /// [`AdamConfig`].
    Adam(AdamConfig),
    /// [`AdamWConfig`].
    AdamW(AdamWConfig),
    /// [`AdanConfig`].
    Adan(AdanConfig),
    /// [`LambConfig`].
    Lamb(LambConfig),
    /// [`LionConfig`].
    Lion(LionConfig),
    /// [`MuonConfig`].
    Muon(MuonConfig),
    /// [`RmsPropConfig`].
    RmsProp(RmsPropConfig),
    /// [`SgdConfig`].
    Sgd(SgdConfig),
}

macro_rules! inner {
    ($($name:ident($config:ident),)*) => {
        impl InnerOptimizerConfig {
            /// Builds the optimizer, as the `init` of the configuration itself does.
            ///
            /// # Panics
            ///
            /// As that, for settings that [`ScaledOptimizerConfig::init`](crate::ScaledOptimizerConfig::init) returns as an error.
            pub fn init(&self) -> ModuleOptimizer {
                match self {
                    $(Self::$name(config) => config.init(),)*
                }
            }
        }

        $(
            impl From<$config> for InnerOptimizerConfig {
                fn from(config: $config) -> Self {
                    Self::$name(config)
                }
            }
        )*
    };
}

impl InnerOptimizerConfig {
    /// Refuses what Burn's `init` panics on.
    pub(super) fn check(&self) -> Result<(), AmpError> {
        let Self::Adafactor(config) = self else {
            return Ok(());
        };
        // Burn's fields are private; JSON shows them, and has no number for an infinity or a NaN.
        let fields = serde_json::to_value(config).unwrap_or_default();
        let value = |field: &str| fields[field].as_f64().unwrap_or(f64::NAN);
        let refused = |field, allowed| Err(AmpError::invalid(field, value(field), allowed));
        for field in ["epsilon_1", "epsilon_2", "clip_threshold"] {
            if value(field).is_nan() || value(field) <= 0.0 {
                return refused(field, "positive and finite");
            }
        }
        if value("decay_rate").is_nan() || value("decay_rate") >= 0.0 {
            return refused("decay_rate", "negative and finite");
        }
        if value("weight_decay").is_nan() || value("weight_decay") < 0.0 {
            return refused("weight_decay", "0 or above, and finite");
        }
        Ok(())
    }
}

inner! {
    AdaGrad(AdaGradConfig),
    Adafactor(AdafactorConfig),
    Adam(AdamConfig),
    AdamW(AdamWConfig),
    Adan(AdanConfig),
    Lamb(LambConfig),
    Lion(LionConfig),
    Muon(MuonConfig),
    RmsProp(RmsPropConfig),
    Sgd(SgdConfig),
}

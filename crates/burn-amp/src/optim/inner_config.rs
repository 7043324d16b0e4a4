use burn::{
    config::Config,
    optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig,
        LionConfig, ModuleOptimizer, MuonConfig, RmsPropConfig, SgdConfig,
    },
};

use crate::loss_scale::InvalidValue;

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
    pub(super) fn check(&self) -> Result<(), InvalidValue> {
        let Self::Adafactor(config) = self else {
            return Ok(());
        };
        let positive = |value: f64| value > 0.0;
        let rules: [(&'static str, fn(f64) -> bool, &str); 5] = [
            ("epsilon_1", positive, "positive and finite"),
            ("epsilon_2", positive, "positive and finite"),
            ("clip_threshold", positive, "positive and finite"),
            ("decay_rate", |value| value < 0.0, "negative and finite"),
            (
                "weight_decay",
                |value| value >= 0.0,
                "0 or above, and finite",
            ),
        ];
        // Burn's fields are private; JSON shows them, and has no number for an infinity or a NaN.
        let fields = serde_json::to_value(config).unwrap_or_default();
        for (field, allows, allowed) in rules {
            let value = fields[field].as_f64().unwrap_or(f64::NAN);
            if !allows(value) {
                return Err(InvalidValue::new(field, value, allowed));
            }
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

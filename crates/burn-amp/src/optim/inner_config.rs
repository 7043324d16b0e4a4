use burn::{
    config::Config,
    optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig,
        LionConfig, ModuleOptimizer, MuonConfig, RmsPropConfig, SgdConfig,
    },
};

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

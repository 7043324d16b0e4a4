//! What these tests share.

pub use burn_amp_tests::{prelude::*, trial::*};

/// The L2 norm.
pub fn l2(values: &[f64]) -> f64 {
    let squares = values.iter().map(|value| value * value);
    squares.sum::<f64>().sqrt()
}

/// Plain SGD at a loss scale of 1024 that grows after two finite steps.
pub fn sgd() -> ScaledOptimizer<ModuleOptimizer> {
    sgd_under(at_scale(1024.0).with_growth_interval(2))
}

/// Any optimizer under these settings of its loss scale.
pub fn under<O: ModuleOptim>(settings: GradScalerConfig, optim: O) -> ScaledOptimizer<O> {
    ScaledOptimizer::new(optim, GradScaler::new(settings).unwrap())
}

/// Plain SGD with f32 copies.
pub fn masters() -> MasterWeights {
    MasterWeights::new(SgdConfig::new().build())
}

/// Why the first step of an optimizer is refused.
pub fn first_error(optim: ScaledOptimizer) -> AmpError {
    Trial::new(optim).refused(ONES)
}

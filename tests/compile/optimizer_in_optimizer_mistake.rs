use burn::optim::{AdamConfig, ModuleOptimizer};
use burn_amp::{MixedPrecision, ScaledOptimizer};

fn main() {
    let amp = MixedPrecision::f16();
    let once: ScaledOptimizer<ModuleOptimizer> = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    ScaledOptimizer::new(once, &amp);
}

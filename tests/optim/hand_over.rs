//! What a scaled optimizer gives access to, and where it may go.

use crate::support::*;

#[test]
fn optimizer_mut_reaches_the_inner_optimizer() {
    let adam = AdamConfig::new().init();
    let mut optim = ScaledOptimizer::new(adam.clone(), scaler());
    *optim.optimizer_mut() = adam.with_grad_clipping(GradientClipping::Value(1e-3));
    assert!(optim.optimizer().has_gradient_clipping());
}

#[test]
fn wrapping_keeps_threads_possible() {
    fn sendable<T: Send + Sync + Clone>() {}
    sendable::<ScaledOptimizer<ModuleOptimizer>>();
}

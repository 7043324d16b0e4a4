//! A `ScaledOptimizer` in another does not compile.

use burn_amp_tests::prelude::*;

struct Given;

trait Chosen<Way> {
    fn chosen() {}
}

impl<T> Chosen<()> for T {}
impl<T: ModuleOptim> Chosen<Given> for T {}

/// `_` is inferred as long as one way only is open: this test stops compiling if a `ScaledOptimizer` becomes a `ModuleOptim`.
#[test]
fn a_scaled_optimizer_is_no_module_optim() {
    <ScaledOptimizer<ModuleOptimizer> as Chosen<_>>::chosen();
    <&mut ScaledOptimizer<ModuleOptimizer> as Chosen<_>>::chosen();
    // Both ways are open for what can be put into one.
    <ModuleOptimizer as Chosen<()>>::chosen();
    <ModuleOptimizer as Chosen<Given>>::chosen();
}

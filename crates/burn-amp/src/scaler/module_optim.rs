use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    optim::{GradientsParams, ModuleOptimizer},
    tensor::DType,
};

/// An optimizer of whole modules: what [`ScaledOptimizer`](crate::ScaledOptimizer) wraps and
/// [`GradScaler::step`](super::GradScaler::step) calls.
///
/// Implemented for Burn's [`ModuleOptimizer`] (hence for every `Optimizer`, with its parameter groups and
/// clipping) and for `&mut O`. A type of one's own needs the one method `step`:
///
/// ```
/// use burn::{
///     lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module,
///     optim::{GradientsParams, ModuleOptimizer},
/// };
/// use burn_amp::ModuleOptim;
///
/// /// Counts the steps that were not skipped.
/// struct Counted {
///     inner: ModuleOptimizer,
///     steps: usize,
/// }
///
/// impl ModuleOptim for Counted {
///     fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
///         self.steps += 1;
///         self.inner.step(lr, module, grads)
///     }
/// }
/// ```
///
/// [`ScaledOptimizer`](crate::ScaledOptimizer) itself does not implement it: scaling twice does not compile.
///
/// ```compile_fail,E0277
/// # fn nest(inner: burn_amp::ScaledOptimizer<burn::optim::ModuleOptimizer>, scaler: burn_amp::GradScaler) {
/// let twice = burn_amp::ScaledOptimizer::new(inner, scaler);
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer of whole modules",
    note = "a `ScaledOptimizer` cannot be put into another: the gradients would be unscaled twice",
    note = "wrap Burn's `ModuleOptimizer` (what `AdamConfig::init` returns), a `MasterOptimizer`, or a type of your own \
            that implements `ModuleOptim`"
)]
pub trait ModuleOptim {
    /// Updates the parameters of `module` that have a gradient. The gradients are unscaled and finite.
    ///
    /// Never called on a step that is skipped.
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M;

    /// Whether a parameter of one dtype can be stepped with a gradient of another.
    ///
    /// By default only if they are the same, as with all of Burn's optimizers. Where it is false, the step is
    /// refused with [`AmpError::HalfPrecisionParameter`](crate::AmpError::HalfPrecisionParameter).
    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        parameter == gradient
    }
}

impl ModuleOptim for ModuleOptimizer {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        ModuleOptimizer::step(self, lr, module, grads)
    }
}

impl<O: ModuleOptim> ModuleOptim for &mut O {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        (**self).step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        (**self).accepts(parameter, gradient)
    }
}

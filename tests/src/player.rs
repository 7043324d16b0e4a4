//! What trains at the border of half precision.

use crate::prelude::*;
use burn_amp_core::internal::StepGradients;

/// A model, its optimizer and the [`MixedPrecision`] of both.
#[derive(Clone)]
pub struct Player<M, O = ModuleOptimizer> {
    /// Whose scopes the model computes in.
    pub amp: MixedPrecision,
    /// Attached to `amp`.
    pub model: M,
    /// On the loss scale of `amp`.
    pub optim: ScaledOptimizer<O>,
}

impl<M: Module> Player<M> {
    /// With SGD.
    pub fn new(model: M, amp: &MixedPrecision) -> Self {
        Self::with(SgdConfig::new().init(), model, amp)
    }
}

impl<M: Module, O: ModuleOptim> Player<M, O> {
    /// With this optimizer.
    pub fn with(optim: O, model: M, amp: &MixedPrecision) -> Self {
        let (model, optim) = amp.prepare(model, optim);
        let amp = amp.clone();
        Self { amp, model, optim }
    }

    /// The gradients of a loss.
    pub fn gradients(&self, loss: Tensor<1>) -> GradientsParams {
        GradientsParams::from_grads(loss.backward(), &self.model)
    }

    /// A step on these gradients.
    ///
    /// # Errors
    ///
    /// Those of [`ScaledOptimizer::try_step`].
    pub fn try_step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        grads: impl Into<StepGradients>,
    ) -> Result<(), AmpError> {
        let stepped = self.optim.try_step(lr, self.model.clone(), grads);
        self.model = stepped.map_err(|failed| failed.error)?;
        Ok(())
    }

    /// A step that fails in no way. Returns whether it was skipped, if that is known.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        grads: impl Into<StepGradients>,
    ) -> bool {
        self.try_step(lr, grads).unwrap();
        self.optim.scaler().last_outcome() == Some(StepOutcome::Skipped)
    }

    /// A step on the gradients of a loss.
    pub fn train(&mut self, lr: impl Into<ModuleLearningRate>, loss: Tensor<1>) -> bool {
        self.step(lr, self.gradients(loss))
    }

    /// The loss scale.
    pub fn scale(&self) -> f64 {
        self.amp.loss_scale().into()
    }

    /// Of the optimizer.
    pub fn counters(&self) -> StepCounters {
        self.optim.scaler().counters()
    }
}

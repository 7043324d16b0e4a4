use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::Tensor,
};

use super::{AccumulationConfig, OverflowRule, WindowReduction, sum};
use crate::{error::AmpError, param_tensors::ParamTensors};

/// The sums of a window that is being filled: one f32 tensor for each parameter (f64 for f64 parameters), added to in
/// place.
///
/// Made by [`AccumulationConfig::init`], filled by [`GradScaler::accumulate`](crate::GradScaler::accumulate), or by
/// `step` inside a [`ScaledOptimizer`](crate::ScaledOptimizer). A value: a clone has a window of its own.
#[derive(Clone, Debug)]
pub struct AccumulationWindow {
    pub(super) config: AccumulationConfig,
    pub(super) sums: ParamTensors,
    pub(super) len: u32,
    /// The loss scale that the sums carry; none if they are unscaled, or the window is empty.
    pub(super) scale: Option<f32>,
}

impl AccumulationWindow {
    pub(super) fn new(config: AccumulationConfig) -> Self {
        Self {
            config,
            sums: ParamTensors::default(),
            len: 0,
            scale: None,
        }
    }

    /// The settings.
    pub fn config(&self) -> &AccumulationConfig {
        &self.config
    }

    /// The number of micro-batches in the window so far. Dropped ones do not count; those without any gradient do, as the part
    /// of a large batch that has none would.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no micro-batch in the window.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of parameters that have a sum.
    pub fn gradients(&self) -> usize {
        self.sums.len()
    }

    /// The sum for a parameter, f32 or f64; none if no gradient of it was added. Scaled by the window's loss scale with
    /// [`OverflowRule::SkipWindow`], unscaled otherwise. A handle to the same memory, on the parameter's device; does not
    /// wait.
    pub fn sum<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        self.sums.get(param.id, &param.device().inner())
    }

    /// Throws away what was summed; the next micro-batch is the first of a new window.
    pub fn clear(&mut self) {
        self.sums = ParamTensors::default();
        self.len = 0;
        self.scale = None;
    }

    pub(crate) fn drops_micro_batches(&self) -> bool {
        self.config.overflow == OverflowRule::SkipMicroBatch
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.config.micro_batches
    }

    /// The loss scale of the sums: the scaler's when the first micro-batch came, for the whole window.
    pub(crate) fn scale_or(&mut self, scale: f32) -> f32 {
        *self.scale.get_or_insert(scale)
    }

    /// Refuses sums that are not of this module, and gradients that cannot be added to them.
    pub(crate) fn check<M: Module>(
        &self,
        grads: Option<&GradientsParams>,
        module: &M,
    ) -> Result<(), AmpError> {
        sum::check(&self.sums, grads, module)
    }

    /// Adds a micro-batch's gradients, multiplied by `factor`. Does not wait for the device.
    pub(crate) fn add<M: Module>(&mut self, grads: GradientsParams, module: &M, factor: f64) {
        sum::add(&mut self.sums, grads, module, factor);
        self.len += 1;
    }

    /// Empties the window: the sums, and what they are to be divided by.
    pub(crate) fn take<M: Module>(&mut self, module: &M) -> (GradientsParams, f64) {
        let scale = f64::from(self.scale.unwrap_or(1.0));
        let divisor = match self.config.reduction {
            WindowReduction::Mean => scale * f64::from(self.len.max(1)),
            WindowReduction::Sum => scale,
        };
        let sums = std::mem::take(&mut self.sums);
        self.clear();
        (sum::take(sums, module), divisor)
    }
}

//! The first loss scale, from one backward pass before the first step.

use burn::{module::Module, optim::GradientsParams, tensor::Tensor};
use burn_amp_core::internal::torch::{multiply_losses, search_scale, unchanged};
use burn_amp_core::{AmpError, inspect};

use crate::GradScaler;

impl GradScaler {
    /// Sets the loss scale from a backward pass that is thrown away: see [`MixedPrecision::calibrate`](burn_amp_core::MixedPrecision::calibrate), which this is for the scaler of
    /// a `MixedPrecision`.
    ///
    /// For half-precision parameters, `loss` computes a loss that is not scaled; it is multiplied here. What is measured are the gradients of the
    /// parameters. What overflows before them is seen by what it leaves there.
    ///
    /// # Errors
    ///
    /// As [`MixedPrecision::calibrate`](burn_amp_core::MixedPrecision::calibrate).
    ///
    /// # Panics
    ///
    /// As [`MixedPrecision::calibrate`](burn_amp_core::MixedPrecision::calibrate).
    pub fn calibrate<M: Module, const D: usize>(
        &mut self,
        model: &M,
        mut loss: impl FnMut(&M) -> Tensor<D>,
    ) -> Result<f32, AmpError> {
        if let Some(amp) = self.precision() {
            return amp.clone().calibrate(model, loss);
        }
        if !self.is_enabled() {
            return Ok(self.loss_scale());
        }
        let scale = search_scale(&self.schedule(), |scale| {
            let value = unchanged(model, || loss(model));
            if !value.is_tracked() {
                return Err(AmpError::NoGradients { gradients: 0 });
            }
            let grads = multiply_losses(value, scale as f32).backward();
            inspect(&GradientsParams::from_grads(grads, model), model)
        })?;
        self.set_loss_scale(scale)?;
        Ok(self.loss_scale())
    }
}

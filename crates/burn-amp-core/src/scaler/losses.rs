//! Losses that a scaler multiplies itself, where no scope does.

use burn::{module::Module, optim::GradientsParams, tensor::Tensor};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Scaler;
use crate::border::cast::{CastFloat, multiply_losses};
use crate::scale::finding::Effect;
use crate::{error::AmpError, gradients::ScaledGradients};

thread_local! {
    /// Set if a scaler of its own has scaled a loss on this thread, whose gradients nobody has tested since.
    pub(super) static SCALES_LOSSES: Cell<bool> = const { Cell::new(false) };
}

/// Says once that gradients are multiplied by two loss scales.
pub(super) fn warn_of_two_scales() {
    warn_once!(
        "a `GradScaler` has scaled the loss, and `autocast` of a `MixedPrecision` in f16 scales gradients too: multiplied by both, they \
         overflow. Call `backward` on the loss as it is, and build the optimizer with `ScaledOptimizer::new(optim, &amp)`"
    );
}

/// Knows whether a loss was scaled since the last `update`, and warns, once, of plain gradients after a loss that was scaled.
///
/// Copies of a scaler share what they have seen until the next `update`: workers scale their losses with copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossWatch {
    scaled: Arc<AtomicBool>,
    warned_of_plain: bool,
}

impl LossWatch {
    /// Says whether a loss was scaled since the last `update`.
    pub(super) fn is_scaled(&self) -> bool {
        self.scaled.load(Ordering::Relaxed)
    }

    /// Plain gradients come in, after a loss was scaled.
    pub(crate) fn check_plain(&mut self) {
        if self.is_scaled() && !std::mem::replace(&mut self.warned_of_plain, true) {
            warn!(
                "a loss was scaled since the last `update`, but these gradients are plain ones, which are taken as unscaled. If they \
                 are that loss's, they are too large by the loss scale: write `optim.backward(loss, &model)`, or \
                 `scaler.scaled(grads)` after `scaler.scale(loss).backward()`"
            );
        }
    }

    /// Starts a new iteration: no loss was scaled in it yet.
    pub(super) fn start(&mut self) {
        self.scaled = Arc::default();
    }
}

impl Scaler {
    /// The factor by which this scaler itself multiplies losses: 1 where scopes do it.
    pub(crate) fn loss_factor(&self) -> f32 {
        match self.amp {
            Some(_) => 1.0,
            None => self.loss_scale(),
        }
    }

    /// Multiplies a loss, or a structure of losses, by the loss scale; by 1 if this is the scaler of a [`MixedPrecision`](crate::MixedPrecision), whose scopes scale.
    ///
    /// Takes what [`CastFloat`] is implemented for: tensors, `Vec`, arrays, tuples and `Option` of them, and structures of your
    /// own by [`cast_fields!`](crate::cast_fields).
    ///
    /// Tensors of any rank and float dtype. The product is taken in f32 and stays f32 for f16, bf16 and f32
    /// losses, so that an f16 loss does not turn into infinity here; an f64 loss stays f64. Disabled: the
    /// losses are returned as they are. Does not wait for the device.
    ///
    /// The way *back* through an f16 loss still passes an f16 gradient, which cannot hold 65536: reduce the loss
    /// itself in f32 (cast the logits), or the first steps will overflow until the scale fits.
    pub fn scale<T: CastFloat>(&self, loss: T) -> T {
        self.multiply(loss, self.loss_factor())
    }

    fn multiply<T: CastFloat>(&self, loss: T, scale: f32) -> T {
        if !self.is_enabled() {
            return loss;
        }
        let scaled = multiply_losses(loss, scale);
        self.watch.scaled.store(true, Ordering::Relaxed);
        if self.amp.is_none() {
            SCALES_LOSSES.set(true);
        }
        scaled
    }

    /// Scales the loss, runs the backward pass and collects the gradients of `module`'s parameters.
    ///
    /// Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`].
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        self.backward_at(self.loss_factor(), loss, module)
    }

    /// Does what [`backward`](Self::backward) does, with another loss scale than the present one.
    pub(crate) fn backward_at<const D: usize, M: Module>(
        &self,
        scale: f32,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        let grads = self.multiply(loss, scale).backward();
        let params = GradientsParams::from_grads(grads, module);
        ScaledGradients { params, scale }
    }

    /// The loss scale after gradients that were dropped are counted.
    pub(crate) fn resolved_loss_factor(&self) -> f32 {
        if self.amp.is_some() || !self.is_enabled() {
            return self.loss_factor();
        }
        let mut evidence = None;
        for found in self.dropped.to_vec() {
            if let Effect::Moves(seen) = found.effect() {
                evidence = Some(seen.after(evidence));
            }
        }
        match evidence {
            Some(seen) => self.schedule().adjust(seen).scale(),
            None => self.loss_factor(),
        }
    }

    /// Marks gradients of a loss that went through [`scale`](Self::scale) since the last `GradScaler::update` as scaled
    /// by the present loss scale.
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
    /// # use burn_amp::{GradScalerConfig, torch::GradScaler};
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(4, 2).init(&device);
    /// # let loss = model.forward(Tensor::<2>::ones([1, 4], &device)).mean();
    /// let scaler = GradScaler::new(GradScalerConfig::new())?;
    /// let grads = scaler.scale(loss).backward();
    /// let grads = scaler.scaled(GradientsParams::from_grads(grads, &model))?;
    /// assert_eq!(grads.loss_scale(), 65536.0);
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::LossNotScaled`] if neither this scaler nor a copy of it has scaled a loss since the last
    /// `GradScaler::update`: the gradients of a plain loss are not scaled, and must not be divided. Never of the scaler of a
    /// [`MixedPrecision`](crate::MixedPrecision), whose scopes scale, and of a disabled one.
    pub fn scaled(&self, grads: GradientsParams) -> Result<ScaledGradients, AmpError> {
        let scales = self.is_enabled() && self.amp.is_none();
        match scales && !self.watch.is_scaled() {
            true => Err(AmpError::LossNotScaled),
            false => Ok(ScaledGradients {
                scale: self.loss_factor(),
                params: grads,
            }),
        }
    }
}

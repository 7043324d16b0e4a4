use burn::{module::ParamId, tensor::Tensor};
use burn_amp_kernels::TensorStatus;
use std::collections::HashMap;

use super::{ClipNorm, ClipStatus, GradientClip, GradientClipConfig};
use crate::{
    error::AmpError,
    gradients::{Entry, GradientMapper, UnscaledGradients, in_full::in_full, unscale::norm},
};

/// What `torch.nn.utils.clip_grad_norm_` adds to the norm.
const EPSILON: f64 = 1e-6;

impl UnscaledGradients {
    /// Clips the gradients; the norms before clipping stay in the [`status`](Self::status).
    ///
    /// The norms are those that the unscaling pass has found, so there is no second pass to find them, and gradients
    /// within their threshold are not touched at all; others are multiplied or limited on their device, and keep shape and
    /// dtype. Does not wait for the device, with one exception: gradients that were changed since (by [`map`](Self::map),
    /// [`mul_scalar`](Self::mul_scalar), [`add`](Self::add), [`params_mut`](Self::params_mut), or by clipping before) and
    /// those of a disabled scaler are measured first, in one pass and one wait, and the status is that of this pass.
    ///
    /// Gradients that overflow stay as they are: the step is skipped, and clipping an infinity would hide it. That holds
    /// for an overflow that is found only now, too. A disabled scaler skips nothing: the step is taken unclipped.
    ///
    /// # Panics
    ///
    /// Where [`try_clip`](Self::try_clip) returns an error, with its message.
    pub fn clip(self, clip: &GradientClip) -> Self {
        self.try_clip(clip)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`clip`](Self::clip), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`] if gradients have to be measured and a gradient's device cannot compute in the
    /// gradient's dtype.
    pub fn try_clip(mut self, clip: &GradientClip) -> Result<Self, AmpError> {
        if self.has_overflow() {
            return Ok(self);
        }
        let statuses = self.measured()?;
        // Also what a change, or a disabled scaler, has let through: clipped, it would look like a gradient.
        if statuses.iter().any(|status| status.non_finite > 0) {
            return Ok(self);
        }
        let (mut limits, status) = plan(clip, self.entries(), &statuses);
        if status.clipped > 0 {
            self = self.map(&mut limits);
        }
        self.set_clip(status);
        Ok(self)
    }
}

/// What is done to one gradient.
enum Limit {
    Multiply(f64),
    Clamp(f64),
}

struct Limits(HashMap<ParamId, Limit>);

impl GradientMapper for Limits {
    fn map<const D: usize>(&mut self, _path: &str, id: ParamId, grad: Tensor<D>) -> Tensor<D> {
        match self.0.get(&id) {
            Some(Limit::Multiply(factor)) => in_full(grad, |grad| grad.mul_scalar(*factor)),
            // Rounding the threshold is rounding the result: no need to widen.
            Some(Limit::Clamp(threshold)) => grad.clamp(-threshold, *threshold),
            None => grad,
        }
    }
}

fn plan(clip: &GradientClip, entries: &[Entry], statuses: &[TensorStatus]) -> (Limits, ClipStatus) {
    let rules: Vec<_> = entries.iter().map(|e| clip.rule(e.id, &e.path)).collect();
    let mut norms = Vec::new();
    let mut coefficients = HashMap::new();
    for (index, (_, rule)) in clip.rules.iter().enumerate() {
        if let GradientClipConfig::GlobalNorm(max_norm) = rule {
            let group = rules.iter().zip(statuses);
            let group = group.filter(|(rule, _)| **rule == Some(index));
            let norm = norm(group.map(|(_, status)| status.norm));
            let coefficient = (max_norm / (norm + EPSILON)).min(1.0);
            norms.push(ClipNorm {
                norm,
                max_norm: *max_norm,
                coefficient,
            });
            coefficients.insert(index, coefficient);
        }
    }

    let mut limits = HashMap::new();
    for ((entry, rule), status) in entries.iter().zip(&rules).zip(statuses) {
        let Some(index) = *rule else { continue };
        let limit = match &clip.rules[index].1 {
            GradientClipConfig::Value(threshold) => {
                (status.max_abs > *threshold).then_some(Limit::Clamp(*threshold))
            }
            GradientClipConfig::Norm(threshold) => {
                (status.norm > *threshold).then(|| Limit::Multiply(threshold / status.norm))
            }
            GradientClipConfig::GlobalNorm(_) => {
                let coefficient = coefficients[&index];
                (coefficient < 1.0).then_some(Limit::Multiply(coefficient))
            }
        };
        if let Some(limit) = limit {
            limits.insert(entry.id, limit);
        }
    }
    let clipped = limits.len();
    (Limits(limits), ClipStatus { norms, clipped })
}

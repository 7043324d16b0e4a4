use burn::{module::ParamId, tensor::Tensor};
use burn_amp_kernels::TensorStatus;
use std::collections::HashMap;

use super::{ClipNorm, ClipStatus, GradientClip, GradientClipConfig};
use crate::gradients::{Entry, GradientMapper, UnscaledGradients, unscale::norm};

/// What `torch.nn.utils.clip_grad_norm_` adds to the norm.
const EPSILON: f64 = 1e-6;

impl UnscaledGradients {
    /// Clips the gradients; the norms before clipping stay in the [`status`](Self::status).
    ///
    /// The norms are those that the unscaling pass has found, so there is no second pass to find them, and gradients
    /// within their threshold are not touched at all; others are multiplied or limited on their device. Only if gradients
    /// were changed since (by [`map`](Self::map), [`mul_scalar`](Self::mul_scalar), [`params_mut`](Self::params_mut)) or
    /// came from a disabled scaler are they measured again, which waits for the device.
    ///
    /// Gradients that overflow stay as they are: the step is skipped, and clipping an infinity would hide it.
    pub fn clip(mut self, clip: &GradientClip) -> Self {
        if self.has_overflow() {
            return self;
        }
        let statuses = self.measures();
        if statuses.iter().any(|status| status.non_finite > 0) {
            // A disabled scaler, or a change by the user: what clipping hid would be lost in the parameters.
            return self;
        }
        let (mut limits, status) = plan(clip, self.entries(), &statuses);
        if status.clipped > 0 {
            self = self.map(&mut limits);
        }
        self.set_clip(status);
        self
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
            Some(Limit::Multiply(factor)) => grad.mul_scalar(*factor),
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

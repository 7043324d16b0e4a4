use burn::optim::GradientsParams;

use super::{ScaledGradients, UnscaledGradients};

/// What [`ScaledOptimizer::step`](crate::ScaledOptimizer::step) takes: gradients that are still scaled, or
/// that were unscaled before, to be looked at or clipped.
///
/// A plain [`GradientsParams`] is taken to be scaled.
#[derive(Debug)]
pub enum StepGradients {
    /// Gradients of a scaled loss.
    Scaled(ScaledGradients),
    /// Gradients after [`ScaledOptimizer::unscale`](crate::ScaledOptimizer::unscale).
    Unscaled(UnscaledGradients),
}

impl From<GradientsParams> for StepGradients {
    fn from(grads: GradientsParams) -> Self {
        Self::Scaled(grads.into())
    }
}

impl From<ScaledGradients> for StepGradients {
    fn from(grads: ScaledGradients) -> Self {
        Self::Scaled(grads)
    }
}

impl From<UnscaledGradients> for StepGradients {
    fn from(grads: UnscaledGradients) -> Self {
        Self::Unscaled(grads)
    }
}

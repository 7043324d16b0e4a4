use burn::optim::GradientsParams;

use super::{ScaledGradients, UnscaledGradients};

/// What [`ScaledOptimizer::step`](crate::ScaledOptimizer::step) takes: Burn's own gradients, which are unscaled, those of a
/// loss that was scaled by hand, or those that were tested before, to be looked at or clipped.
#[derive(Debug)]
#[non_exhaustive]
pub enum StepGradients {
    /// Burn's own gradients, unscaled. They are tested.
    Plain(GradientsParams),
    /// Gradients of a scaled loss.
    Scaled(ScaledGradients),
    /// Gradients after [`ScaledOptimizer::unscale`](crate::ScaledOptimizer::unscale).
    Unscaled(UnscaledGradients),
}

impl From<GradientsParams> for StepGradients {
    fn from(grads: GradientsParams) -> Self {
        Self::Plain(grads)
    }
}

impl StepGradients {
    pub(crate) fn params(&self) -> &GradientsParams {
        match self {
            Self::Plain(grads) => grads,
            Self::Scaled(grads) => grads.params(),
            Self::Unscaled(grads) => grads.params(),
        }
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

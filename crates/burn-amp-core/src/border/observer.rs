//! What a crate above this one attaches to a `MixedPrecision`, to follow its steps. Knows nothing of it.

use burn::tensor::Tensor;
use std::any::Any;

use crate::gradients::{GradientStatus, UnscaledGradients};
use crate::{error::AmpError, scale::loss_scale::StepOutcome};

/// Follows the steps of a [`MixedPrecision`](crate::MixedPrecision), on the threads that make them. It must not wait for the device.
pub trait Observer: Any + Send + Sync {
    /// The gradients of a step were tested at this loss scale, and nothing was done with them yet.
    fn tested(&self, _grads: &UnscaledGradients, _loss_scale: f32) {}

    /// In a dry run: a tensor leaves all scopes, flat, without its graph and in the dtype of the scope.
    fn left(&self, _output: Tensor<1>) {}

    /// A call of `step` is over.
    fn stepped(&self, _step: Stepped<'_>) {}
}

/// What a step has done. Host values.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'a> {
    /// Who has made it: clones are one.
    pub optimizer: u64,
    /// Whether others that share the loss scale have not stepped yet in this iteration.
    pub is_iteration_open: bool,
    /// None of gradients that were refused.
    pub outcome: Option<StepOutcome>,
    /// The loss scale after it.
    pub loss_scale: f32,
    /// None where nothing was measured.
    pub status: Option<&'a GradientStatus>,
    /// Why the run cannot go on, if it cannot.
    pub error: Option<&'a AmpError>,
}

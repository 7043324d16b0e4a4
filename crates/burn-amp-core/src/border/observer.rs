//! What a crate above this one attaches to a `MixedPrecision`, to follow its steps. Knows nothing of it.

use burn::tensor::Tensor;
use std::any::Any;

use crate::gradients::{GradientStatus, UnscaledGradients};
use crate::{error::AmpError, scale::loss_scale::StepOutcome};

/// Follows the steps of a [`MixedPrecision`](crate::MixedPrecision), on the threads that make them. It must not wait for the device.
pub trait Observer: Any + Send + Sync {
    /// The gradients of a step were tested at this loss scale, and nothing was done with them yet.
    fn tested(&self, _grads: &UnscaledGradients, _loss_scale: f32) {}

    /// A tensor leaves all scopes of a dry run: flat, without its graph and in the dtype of the scope.
    fn left(&self, _output: Tensor<1>) {}

    /// A call of `step` is over.
    fn stepped(&self, _step: Stepped<'_>) {}
}

/// The result of a step. Host values.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'a> {
    /// The optimizer that has made it: clones are one.
    pub optimizer: u64,
    /// Set while others that share the loss scale have not stepped yet in this iteration.
    pub is_iteration_open: bool,
    /// Its outcome; none of gradients that were refused.
    pub outcome: Option<StepOutcome>,
    /// The loss scale after it.
    pub loss_scale: f32,
    /// The measures of its gradients; none where nothing was measured.
    pub status: Option<&'a GradientStatus>,
    /// The reason why the run cannot go on, if it cannot.
    pub error: Option<&'a AmpError>,
}

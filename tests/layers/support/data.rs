//! Inputs and parameters that are the same in every run.

use burn_amp_tests::prelude::*;

/// A tensor of values in (-1, 1).
pub fn tensor<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    burn_amp_tests::random(7, shape, device)
}

/// Gives every trainable parameter values of its own; running statistics stay.
pub fn fill<M: Module>(module: M) -> M {
    burn_amp_tests::fill(module, 0, 0.6)
}

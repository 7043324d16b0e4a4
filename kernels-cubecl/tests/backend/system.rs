//! What is tested: a pair of functions, and how accurate its norms are.

use burn::tensor::Tensor;
use burn_amp_kernels::{Status, TensorList};

use crate::device;

/// A pair of functions with the contract of `unscale` and `inspect`.
pub struct System {
    pub unscale: fn(TensorList, Tensor<1>) -> (TensorList, Status),
    pub inspect: fn(TensorList) -> Status,
    /// Relative, of norms.
    pub tolerance: f64,
}

impl System {
    /// The functions of the crate.
    pub fn kernels() -> Self {
        Self {
            unscale: burn_amp_kernels::unscale,
            inspect: burn_amp_kernels::inspect,
            tolerance: device::TOLERANCE,
        }
    }

    pub fn unscale(&self, list: TensorList, inverse: f32) -> (TensorList, Status) {
        (self.unscale)(list, Tensor::from_floats([inverse], &device::device()))
    }

    pub fn inspect(&self, list: TensorList) -> Status {
        (self.inspect)(list)
    }

    /// Asserts that a norm is as accurate as this system claims.
    pub fn assert_norm(&self, norm: f64, expected: f64) {
        let error = (norm - expected).abs();
        assert!(
            error <= self.tolerance * expected,
            "norm {norm:e} for {expected:e}: relative error {:e}",
            error / expected
        );
    }
}

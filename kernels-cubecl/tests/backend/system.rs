//! What is tested: functions with one contract, and how accurate their norms are.

use burn::tensor::Tensor;
#[cfg(not(feature = "cubecl"))]
use burn_amp_kernels::fallback;
use burn_amp_kernels::{ExponentHistogram, Histogram, Status, TensorList};

use crate::device;

/// Functions with the contract of `unscale`, `inspect` and `histogram`.
pub struct System {
    unscale: fn(TensorList, Tensor<1>) -> (TensorList, Status),
    unscale_in_dtype: fn(TensorList, Tensor<1>) -> (TensorList, Status),
    inspect: fn(TensorList) -> Status,
    histogram: fn(TensorList) -> Histogram,
    /// Relative, of norms.
    pub tolerance: f64,
}

impl System {
    /// The functions of the crate.
    pub fn kernels() -> Self {
        Self {
            unscale: |list, inverse| {
                burn_amp_kernels::unscale(list, inverse).expect("supported dtypes")
            },
            unscale_in_dtype: |list, inverse| {
                burn_amp_kernels::unscale_in_dtype(list, inverse).expect("supported dtypes")
            },
            inspect: |list| burn_amp_kernels::inspect(list).expect("supported dtypes"),
            histogram: |list| burn_amp_kernels::histogram(list).expect("supported dtypes"),
            tolerance: device::tolerance(),
        }
    }

    /// The composition of Burn's operations.
    #[cfg(not(feature = "cubecl"))]
    pub fn composed() -> Self {
        Self {
            unscale: fallback::unscale,
            unscale_in_dtype: fallback::unscale_in_dtype,
            inspect: fallback::inspect,
            histogram: fallback::histogram,
            tolerance: 1e-5,
        }
    }

    pub fn unscale(&self, list: TensorList, inverse: f32) -> (TensorList, Status) {
        (self.unscale)(list, Tensor::from_floats([inverse], &device::device()))
    }

    pub fn unscale_in_dtype(&self, list: TensorList, inverse: f32) -> (TensorList, Status) {
        (self.unscale_in_dtype)(list, Tensor::from_floats([inverse], &device::device()))
    }

    pub fn inspect(&self, list: TensorList) -> Status {
        (self.inspect)(list)
    }

    pub fn histogram(&self, list: TensorList) -> ExponentHistogram {
        (self.histogram)(list).read()
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

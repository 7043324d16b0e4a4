//! What is tested: the functions of the crate, and how accurate their norms are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Tensor;
use burn_amp_kernels::{ExponentHistogram, Status, TensorList, TensorStatus, panic_message};

use crate::device;

pub struct System {
    /// Whether the kernels of the device do it, or Burn's operations.
    has_kernels: bool,
    /// Relative, of norms.
    pub tolerance: f64,
}

impl System {
    /// What users get.
    pub fn kernels() -> Self {
        Self {
            has_kernels: true,
            // The CPU runtime has as many units as the machine has cores, and each adds up a long row of f32.
            tolerance: if device::is_cpu() { 1e-5 } else { 1e-6 },
        }
    }

    /// The composition of Burn's operations.
    #[cfg(not(feature = "cubecl"))]
    pub fn composed() -> Self {
        Self {
            has_kernels: false,
            tolerance: 1e-5,
        }
    }

    /// Whether kernels do it, as the device has some.
    pub fn uses_kernels(&self) -> bool {
        self.has_kernels && device::has_kernels()
    }

    fn list(&self, mut list: TensorList) -> TensorList {
        if !self.has_kernels {
            list.without_kernels();
        }
        list
    }

    pub fn unscale(&self, list: TensorList, inverse: f32) -> (TensorList, Status) {
        let products = burn_amp_kernels::unscale(self.list(list), there(inverse));
        products.expect("supported dtypes")
    }

    pub fn unscale_in_dtype(&self, list: TensorList, inverse: f32) -> (TensorList, Status) {
        let products = burn_amp_kernels::unscale_in_dtype(self.list(list), there(inverse));
        products.expect("supported dtypes")
    }

    pub fn inspect(&self, list: TensorList) -> Status {
        burn_amp_kernels::inspect(self.list(list)).expect("supported dtypes")
    }

    pub fn histogram(&self, list: TensorList) -> ExponentHistogram {
        let histogram = burn_amp_kernels::histogram(self.list(list));
        histogram.expect("supported dtypes").read()
    }

    /// What is found in one tensor.
    pub fn inspect_one<const D: usize>(&self, tensor: Tensor<D>) -> TensorStatus {
        self.inspect(list_of([tensor])).read()[0]
    }

    /// The product of one tensor, and what is found in it.
    pub fn unscale_one<const D: usize>(
        &self,
        tensor: Tensor<D>,
        inverse: f32,
    ) -> (Tensor<D>, TensorStatus) {
        let (products, status) = self.unscale(list_of([tensor]), inverse);
        let row = status.read()[0];
        (products.get::<D>(0), row)
    }

    /// Asserts that a norm is as accurate as this system claims.
    pub fn assert_norm(&self, norm: f64, expected: f64) {
        let is_near = (norm - expected).abs() <= self.tolerance * expected;
        assert!(is_near, "norm {norm:e} for {expected:e}");
    }
}

/// On the device.
fn there(number: f32) -> Tensor<1> {
    Tensor::from_floats([number], &device::device())
}

/// A list of tensors of one rank.
pub fn list_of<const D: usize>(tensors: impl IntoIterator<Item = Tensor<D>>) -> TensorList {
    let mut list = TensorList::new();
    tensors.into_iter().for_each(|tensor| list.push(tensor));
    list
}

/// Asserts that this panics with a message that says so.
pub fn panics<R>(says: &str, action: impl FnOnce() -> R) {
    let panicked = catch_unwind(AssertUnwindSafe(action));
    let panic = panicked.map(drop).expect_err(says);
    let message = panic_message(&*panic);
    assert!(message.contains(says), "{message}");
}

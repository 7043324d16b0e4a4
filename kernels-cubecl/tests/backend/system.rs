//! What is tested: the functions of the crate, and how accurate their norms are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

pub struct System {
    /// True if Burn's operations do it, and not the kernels of the device, which users get.
    pub is_composed: bool,
}

impl System {
    /// Relative, of norms. The CPU runtime has as many units as the machine has cores, and each adds up a long row of f32.
    pub fn tolerance(&self) -> f64 {
        let adds_in_f32 = self.is_composed || is_cpu();
        if adds_in_f32 { 1e-5 } else { 1e-6 }
    }

    fn list(&self, mut list: TensorList) -> TensorList {
        if self.is_composed {
            list.without_kernels();
        }
        list
    }

    pub fn unscale(&self, list: TensorList, inverse: f32) -> (TensorList, Status) {
        unscale(self.list(list), floats(vec![inverse], [1])).expect("supported dtypes")
    }

    pub fn unscale_in_dtype(&self, list: TensorList, inverse: f32) -> (TensorList, Status) {
        unscale_in_dtype(self.list(list), floats(vec![inverse], [1])).expect("supported dtypes")
    }

    pub fn inspect(&self, list: TensorList) -> Status {
        inspect(self.list(list)).expect("supported dtypes")
    }

    pub fn histogram(&self, list: TensorList) -> ExponentHistogram {
        let found = burn_amp_kernels::histogram(self.list(list));
        found.expect("supported dtypes").read()
    }

    /// Asserts that a norm is as accurate as this system claims.
    pub fn assert_norm(&self, norm: f64, expected: f64) {
        let is_near = (norm - expected).abs() <= self.tolerance() * expected;
        assert!(is_near, "norm {norm:e} for {expected:e}");
    }
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

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::Tensor;

use crate::BufferAddress;

/// Float tensors of any ranks, all on one device.
#[derive(Clone, Debug)]
pub struct TensorList {
    pub(crate) tensors: Vec<DispatchTensor>,
    pub(crate) edge: f32,
    pub(crate) has_kernels: bool,
}

impl TensorList {
    /// An empty list.
    pub fn new() -> Self {
        Self::of(Vec::new())
    }

    pub(crate) fn of(tensors: Vec<DispatchTensor>) -> Self {
        Self {
            tensors,
            edge: f32::INFINITY,
            has_kernels: true,
        }
    }

    /// Counts values from this magnitude on in [`TensorStatus::above`](crate::TensorStatus::above), after scaling. Infinity,
    /// the default, counts what is not finite; so does NaN. Zero and what is below count all values.
    pub fn count_from(&mut self, edge: f32) {
        self.edge = match edge.is_nan() {
            true => f32::INFINITY,
            false => edge.max(0.0),
        };
    }

    /// Has Burn's own operations do the work, as on backends without kernels: to compare with.
    pub fn without_kernels(&mut self) {
        self.has_kernels = false;
    }

    /// Adds a tensor of dtype f16, bf16, f32 or f64; an association with autodiff is dropped.
    pub fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.tensors.push(tensor.inner().into_dispatch());
    }

    /// The tensor at a position. A handle to the same memory.
    ///
    /// # Panics
    ///
    /// If there is none, or its rank is not `D`.
    pub fn get<const D: usize>(&self, index: usize) -> Tensor<D> {
        typed(self.tensors[index].clone())
    }

    /// Takes out the last tensor, so that nothing else holds its memory.
    ///
    /// # Panics
    ///
    /// If its rank is not `D`.
    pub fn pop<const D: usize>(&mut self) -> Option<Tensor<D>> {
        self.tensors.pop().map(typed)
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Where the tensors' values are: see [`BufferAddress::of`].
    pub fn addresses(&self) -> Vec<Option<BufferAddress>> {
        let tensors = self.tensors.iter().cloned();
        tensors.map(BufferAddress::of).collect()
    }

    /// The tensors' numbers of values.
    pub(crate) fn elements(&self) -> Vec<u64> {
        let elements = |tensor: &DispatchTensor| tensor.shape().num_elements() as u64;
        self.tensors.iter().map(elements).collect()
    }
}

/// Takes the tensors out one by one, so that nothing else holds the memory of one that is out.
impl IntoIterator for TensorList {
    type Item = DispatchTensor;
    type IntoIter = std::vec::IntoIter<DispatchTensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}

impl Default for TensorList {
    fn default() -> Self {
        Self::new()
    }
}

/// Burn itself does not look at the rank here, and goes on with a wrong one.
fn typed<const D: usize>(tensor: DispatchTensor) -> Tensor<D> {
    assert_eq!(tensor.rank(), D, "the rank is not the one asked for");
    Tensor::from_dispatch(tensor)
}

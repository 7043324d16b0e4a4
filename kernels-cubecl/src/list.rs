use burn::{
    backend::{DispatchTensor, TensorMetadata},
    tensor::{DType, Tensor},
};

/// Float tensors of any ranks, all on one device.
#[derive(Clone, Debug)]
pub struct TensorList {
    pub(crate) tensors: Vec<Entry>,
    pub(crate) edge: f32,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) tensor: DispatchTensor,
    pub(crate) dtype: DType,
    pub(crate) elements: usize,
}

impl TensorList {
    /// An empty list.
    pub fn new() -> Self {
        Self {
            tensors: Vec::new(),
            edge: f32::INFINITY,
        }
    }

    /// Counts values from this magnitude on in [`TensorStatus::above`](crate::TensorStatus::above), after scaling. Infinity,
    /// the default, counts what is not finite; so does NaN.
    pub fn count_from(&mut self, edge: f32) {
        self.edge = match edge.is_nan() {
            true => f32::INFINITY,
            false => edge.max(0.0),
        };
    }

    /// Adds a tensor of dtype f16, bf16, f32 or f64; an association with autodiff is dropped.
    pub fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        let tensor = tensor.inner();
        self.tensors.push(Entry {
            dtype: tensor.dtype(),
            elements: tensor.shape().num_elements(),
            tensor: tensor.into_dispatch(),
        });
    }

    /// The tensor at a position. A handle to the same memory.
    ///
    /// # Panics
    ///
    /// If there is none, or its rank is not `D`.
    pub fn get<const D: usize>(&self, index: usize) -> Tensor<D> {
        typed(self.tensors[index].tensor.clone())
    }

    /// Takes out the last tensor, so that nothing else holds its memory.
    ///
    /// # Panics
    ///
    /// If its rank is not `D`.
    pub fn pop<const D: usize>(&mut self) -> Option<Tensor<D>> {
        self.tensors.pop().map(|entry| typed(entry.tensor))
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

impl Default for TensorList {
    fn default() -> Self {
        Self::new()
    }
}

/// Burn itself does not look at the rank here, and goes on with a wrong one.
fn typed<const D: usize>(tensor: DispatchTensor) -> Tensor<D> {
    assert_eq!(
        tensor.rank(),
        D,
        "the tensor's rank is not the one asked for"
    );
    Tensor::from_dispatch(tensor)
}

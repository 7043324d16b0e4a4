//! Tensors by parameter: running sums, moving averages, masters.

use burn::{
    module::ParamId,
    tensor::{DType, Device, Shape, Tensor, TensorData},
};
use std::{collections::BTreeMap, fmt};

use crate::values::any_tensor::AnyTensor;

/// What is kept of a parameter: on its device, or as it was loaded, until its device is known.
#[derive(Clone)]
pub enum ParamTensor {
    /// Boxed, as a handle is large and what was loaded is small.
    Live(Box<AnyTensor>),
    /// As a record has it.
    Stored(TensorData),
}

impl ParamTensor {
    /// Its rank.
    pub fn rank(&self) -> usize {
        match self {
            Self::Live(tensor) => tensor.rank(),
            Self::Stored(data) => data.rank(),
        }
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Live(tensor) => tensor.shape(),
            Self::Stored(data) => data.shape().clone(),
        }
    }

    /// Its dtype.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Live(tensor) => tensor.dtype(),
            Self::Stored(data) => data.dtype(),
        }
    }

    /// The tensor on `device`; none if it was loaded, in a rank that Burn's tensors cannot have. Nothing here holds its memory, unless a clone
    /// of this does.
    pub fn live(self, device: &Device) -> Option<AnyTensor> {
        match self {
            Self::Live(tensor) => Some(tensor.moved_to(device)),
            Self::Stored(data) => AnyTensor::from_data(data, device),
        }
    }

    /// The tensor on `device`; none if its rank is not `D`.
    pub fn on<const D: usize>(self, device: &Device) -> Option<Tensor<D>> {
        let fits = self.rank() == D;
        Some(fits.then(|| self.live(device))??.into_tensor())
    }

    /// Waits for the device, or will where the values are looked at: see [`ParamTensors::to_data`].
    pub fn to_data(&self) -> TensorData {
        match self {
            Self::Live(tensor) => AnyTensor::clone(tensor).into_data(),
            Self::Stored(data) => data.clone(),
        }
    }
}

impl From<AnyTensor> for ParamTensor {
    fn from(tensor: AnyTensor) -> Self {
        Self::Live(Box::new(tensor))
    }
}

impl From<TensorData> for ParamTensor {
    fn from(data: TensorData) -> Self {
        Self::Stored(data)
    }
}

impl<const D: usize> From<Tensor<D>> for ParamTensor {
    fn from(tensor: Tensor<D>) -> Self {
        AnyTensor::new(tensor).into()
    }
}

impl fmt::Debug for ParamTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.dtype(), self.shape())
    }
}

/// Tensors by parameter id. What was loaded stays on the host until a parameter's device is known.
///
/// As Burn's `GradientsParams`, but `Sync` and `Clone`, as optimizers are. A clone has handles to the same memory: whoever
/// changes a tensor first, copies it.
#[derive(Clone, Debug, Default)]
pub struct ParamTensors {
    tensors: BTreeMap<ParamId, ParamTensor>,
}

impl<T: Into<ParamTensor>> FromIterator<(ParamId, T)> for ParamTensors {
    fn from_iter<I: IntoIterator<Item = (ParamId, T)>>(tensors: I) -> Self {
        let tensors = tensors.into_iter();
        Self {
            tensors: tensors.map(|(id, tensor)| (id, tensor.into())).collect(),
        }
    }
}

impl ParamTensors {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.tensors.keys().copied()
    }

    /// Whether there is one of a parameter.
    pub fn contains(&self, id: ParamId) -> bool {
        self.tensors.contains_key(&id)
    }

    /// The tensor of a parameter, wherever it is.
    pub fn tensor(&self, id: ParamId) -> Option<&ParamTensor> {
        self.tensors.get(&id)
    }

    /// The shape of that of a parameter.
    pub fn shape(&self, id: ParamId) -> Option<Shape> {
        self.tensor(id).map(ParamTensor::shape)
    }

    pub(crate) fn dtype(&self, id: ParamId) -> Option<DType> {
        self.tensor(id).map(ParamTensor::dtype)
    }

    /// Adds a tensor, in the place of one of the same parameter.
    pub fn insert(&mut self, id: ParamId, tensor: impl Into<ParamTensor>) {
        self.tensors.insert(id, tensor.into());
    }

    /// Takes the tensor of a parameter out, on `device`, so that nothing else here holds its memory.
    pub(crate) fn take_any(&mut self, id: ParamId, device: &Device) -> Option<AnyTensor> {
        self.tensors.remove(&id)?.live(device)
    }

    /// The tensor of a parameter, on `device`. A handle to the same memory if it is there already.
    pub(crate) fn get_any(&self, id: ParamId, device: &Device) -> Option<AnyTensor> {
        self.tensor(id)?.clone().live(device)
    }

    /// As [`get_any`](Self::get_any); none if its rank is not `D`.
    pub(crate) fn get<const D: usize>(&self, id: ParamId, device: &Device) -> Option<Tensor<D>> {
        self.tensor(id)?.clone().on(device)
    }

    /// The values, in the order of the ids. Waits for the device, or will where they are looked at (CubeCL reads then): hold these
    /// tensors until that is done, or a change in place shows.
    pub(crate) fn to_data(&self) -> Vec<(ParamId, TensorData)> {
        let tensors = self.tensors.iter();
        tensors
            .map(|(id, tensor)| (*id, tensor.to_data()))
            .collect()
    }
}

//! Tensors by parameter: running sums, moving averages, masters.

use burn::module::ParamId;
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use std::{collections::BTreeMap, fmt};

use crate::values::AnyTensor;

/// A tensor that is kept for a parameter: on its device, or as it was loaded, until its device is known.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // a fused step would allocate for each state of each parameter
pub enum ParamTensor {
    /// It is on its device.
    Live(AnyTensor),
    /// It is as a record has it.
    Stored(TensorData),
}

impl ParamTensor {
    /// Its rank.
    pub fn rank(&self) -> usize {
        self.shape().num_dims()
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
        match self.rank() == D {
            true => self.live(device).map(AnyTensor::into_tensor),
            false => None,
        }
    }

    /// The values. Waits for the device, or will where they are looked at (CubeCL reads then): hold the tensor until that is done, or a change in
    /// place shows.
    pub fn to_data(&self) -> TensorData {
        match self {
            Self::Live(tensor) => tensor.clone().into_data(),
            Self::Stored(data) => data.clone(),
        }
    }
}

impl From<AnyTensor> for ParamTensor {
    fn from(tensor: AnyTensor) -> Self {
        Self::Live(tensor)
    }
}

impl From<TensorData> for ParamTensor {
    fn from(data: TensorData) -> Self {
        Self::Stored(data)
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
pub type ParamTensors = BTreeMap<ParamId, ParamTensor>;

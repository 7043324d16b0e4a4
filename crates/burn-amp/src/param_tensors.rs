//! One tensor for each parameter, of any rank: running sums, moving averages.

use burn::{
    module::ParamId,
    tensor::{DType, Device, Shape, Tensor, TensorData},
};
use std::{any::Any, collections::BTreeMap, fmt, sync::Arc};

use crate::rank::with_rank;

/// Tensors by parameter id. What was loaded stays on the host until a parameter's device is known.
///
/// As Burn's `GradientsParams`, but `Sync` and `Clone`, as optimizers are. A clone has handles to the same memory: whoever
/// changes a tensor first, copies it.
#[derive(Clone, Debug, Default)]
pub struct ParamTensors {
    slots: BTreeMap<u64, Slot>,
}

#[derive(Clone, Debug)]
struct Slot {
    shape: Shape,
    dtype: DType,
    value: Value,
}

#[derive(Clone)]
enum Value {
    /// A `Tensor<D>`, with the rank of the shape.
    Live(Arc<dyn Any + Send + Sync>),
    Stored(TensorData),
}

impl ParamTensors {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn contains(&self, id: ParamId) -> bool {
        self.slots.contains_key(&id.val())
    }

    /// Takes over the tensors of others, in place of those of the same parameters.
    pub(crate) fn extend(&mut self, others: Self) {
        self.slots.extend(others.slots);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(ParamId) -> bool) {
        self.slots.retain(|id, _| keep(ParamId::from(*id)));
    }

    pub(crate) fn remove(&mut self, id: ParamId) {
        self.slots.remove(&id.val());
    }

    pub(crate) fn shape(&self, id: ParamId) -> Option<&Shape> {
        self.slots.get(&id.val()).map(|slot| &slot.shape)
    }

    pub(crate) fn dtype(&self, id: ParamId) -> Option<DType> {
        self.slots.get(&id.val()).map(|slot| slot.dtype)
    }

    pub(crate) fn insert<const D: usize>(&mut self, id: ParamId, tensor: Tensor<D>) {
        let slot = Slot {
            shape: tensor.shape(),
            dtype: tensor.dtype(),
            value: Value::Live(Arc::new(tensor)),
        };
        self.slots.insert(id.val(), slot);
    }

    /// Keeps a loaded tensor on the host.
    pub(crate) fn store(&mut self, id: ParamId, data: TensorData) {
        let slot = Slot {
            shape: data.shape().clone(),
            dtype: data.dtype(),
            value: Value::Stored(data),
        };
        self.slots.insert(id.val(), slot);
    }

    /// Takes the tensor of a parameter out, on `device`, so that nothing else here holds its memory.
    pub(crate) fn take<const D: usize>(
        &mut self,
        id: ParamId,
        device: &Device,
    ) -> Option<Tensor<D>> {
        match self.slots.remove(&id.val())?.value {
            Value::Stored(data) => upload(data, device),
            Value::Live(tensor) => {
                let tensor = tensor.downcast::<Tensor<D>>().ok()?;
                // The tensor itself, unless a clone of these tensors has it too.
                let tensor = Arc::try_unwrap(tensor).unwrap_or_else(|shared| (*shared).clone());
                Some(moved(tensor, device))
            }
        }
    }

    /// The tensor of a parameter, on `device`. A handle to the same memory if it is there already.
    pub(crate) fn get<const D: usize>(&self, id: ParamId, device: &Device) -> Option<Tensor<D>> {
        match &self.slots.get(&id.val())?.value {
            Value::Stored(data) => upload(data.clone(), device),
            Value::Live(tensor) => {
                let tensor = tensor.downcast_ref::<Tensor<D>>()?;
                Some(moved(tensor.clone(), device))
            }
        }
    }

    /// The values, in the order of the ids. Waits for the device, or will where they are looked at (CubeCL reads then): hold these
    /// tensors until that is done, or a change in place shows.
    pub(crate) fn to_data(&self) -> Vec<(ParamId, TensorData)> {
        let data = |(id, slot): (&u64, &Slot)| {
            let data = match &slot.value {
                Value::Stored(data) => Some(data.clone()),
                Value::Live(tensor) => with_rank!(
                    slot.shape.num_dims(),
                    D => tensor.downcast_ref::<Tensor<D>>().map(Tensor::to_data),
                    _rank => None
                ),
            };
            data.map(|data| (ParamId::from(*id), data))
        };
        self.slots.iter().filter_map(data).collect()
    }
}

fn upload<const D: usize>(data: TensorData, device: &Device) -> Option<Tensor<D>> {
    let dtype = data.dtype();
    (data.rank() == D).then(|| Tensor::from_data(data, (device, dtype)))
}

fn moved<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    if tensor.device() == *device {
        tensor
    } else {
        tensor.to_device(device)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live(_) => f.write_str("on its device"),
            Self::Stored(_) => f.write_str("on the host"),
        }
    }
}

//! A state that a record holds by its name. Knows no owner of one.

use burn::module::ParamId;
use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Serialize, de::DeserializeOwned};

use super::container::{Container, key_of};
use crate::error::AmpError;
use crate::values::{ParamTensor, ParamTensors, working_dtype};

/// The JSON of a state that is tensors alone, which is not written.
const NO_VALUES: &str = "{}";

/// What a record stores of a [`Hook`](crate::step::hook::Hook): values that serde writes, and tensors by parameter.
///
/// A clone has handles to the same tensors.
#[derive(Clone, Debug)]
pub struct State {
    /// `{}` where the tensors are all of it.
    pub(crate) json: String,
    pub(crate) tensors: ParamTensors,
}

impl State {
    /// These values, and no tensors.
    ///
    /// # Errors
    ///
    /// What serde says of values that are no JSON, as maps whose keys are no text. A number that is infinite or NaN becomes JSON's null.
    pub fn of(values: &impl Serialize) -> Result<Self, String> {
        let json = serde_json::to_string(values).map_err(|error| error.to_string())?;
        Ok(Self {
            json,
            tensors: ParamTensors::default(),
        })
    }

    /// With a tensor of a parameter, without its autodiff: in f64 if it is, and in f32 otherwise. A handle: the device reads it when the
    /// record is written.
    pub fn with_tensor<const D: usize>(mut self, id: ParamId, tensor: Tensor<D>) -> Self {
        let dtype = working_dtype(tensor.dtype());
        self.tensors.insert(id, tensor.cast(dtype).into());
        self
    }

    /// The values.
    ///
    /// # Errors
    ///
    /// What serde refuses.
    pub fn values<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_str(&self.json).map_err(|error| error.to_string())
    }

    /// The tensor of a parameter, on `device`; none if there is none of this rank.
    pub fn tensor<const D: usize>(&self, id: ParamId, device: &Device) -> Option<Tensor<D>> {
        self.tensors.get(&id).cloned()?.on(device)
    }

    /// The parameters that have a tensor here.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.tensors.keys().copied()
    }

    pub(crate) fn with_tensors(self, tensors: ParamTensors) -> Self {
        Self { tensors, ..self }
    }

    /// As [`of`](Self::of), of plain data without maps or foreign types: there is no way for it to fail.
    pub(super) fn plain(values: &impl Serialize) -> Self {
        Self::of(values).expect("a record is plain data")
    }

    /// Tensors without values.
    pub(super) fn of_tensors(tensors: ParamTensors) -> Self {
        let json = NO_VALUES.to_string();
        Self { json, tensors }
    }
}

/// In a container: the JSON under `burn_amp.{name}`, and the tensors each after its parameter, `{id}.burn_amp.{field}`, as an optimizer's own
/// are, whose readers pass over them.
impl State {
    /// On some devices the tensors are read when the container is written.
    pub(super) fn put_into(self, container: &mut Container, name: &str, field: &str) {
        if self.json != NO_VALUES || self.tensors.is_empty() {
            container.metadata.insert(key_of(name), self.json);
        }
        let field = key_of(field);
        let pack = |(id, tensor): (&ParamId, &ParamTensor)| {
            let name = format!("{}.{field}", id.val());
            let (bytes, shape, dtype) = tensor.to_data().into_parts();
            burn_pack::Tensor::new(name, dtype, shape, Some(id.val()), bytes)
        };
        container.extend(self.tensors.iter().map(pack));
        container.held.push(self.tensors);
    }

    /// Takes it out, if it is there. The tensors stay on the host until their parameter's device is known.
    pub(super) fn take_from(
        container: &mut Container,
        name: &str,
        field: &str,
    ) -> Result<Option<Self>, AmpError> {
        let mut found = ParamTensors::default();
        let end = format!(".{}", key_of(field));
        for tensor in container.split_tensors(|name| name.ends_with(&end)) {
            let name = tensor.name.clone();
            let parts = tensor.into_parts();
            let (_, dtype, shape, id, bytes) =
                parts.map_err(|error| container.damaged(error.to_string()))?;
            let reason = match id {
                Some(id) if matches!(dtype, DType::F32 | DType::F64) => {
                    let data = TensorData::from_bytes(bytes, shape, dtype);
                    found.insert(id.into(), data.into());
                    continue;
                }
                Some(_) => format!(
                    "tensor `{name}` is {}, but must be f32 or f64",
                    dtype.name()
                ),
                None => format!("tensor `{name}` belongs to no parameter"),
            };
            return Err(container.damaged(reason));
        }
        let json = container.metadata.remove(&key_of(name));
        let is_there = json.is_some() || !found.is_empty();
        Ok(is_there.then(|| Self {
            json: json.unwrap_or_else(|| NO_VALUES.to_string()),
            tensors: found,
        }))
    }
}

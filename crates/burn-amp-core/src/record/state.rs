//! A state that a record holds by its name. Knows no owner of one.

use burn::module::ParamId;
use burn::tensor::{Device, Tensor};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::values::{AnyTensor, ParamTensors, working_dtype};

/// The state of a [`Hook`](crate::step::hook::Hook) in a record: values that serde writes, and tensors by parameter.
///
/// A clone has handles to the same tensors.
#[derive(Clone, Debug)]
pub struct State {
    /// `{}` where the tensors are all of it.
    pub(super) values: Value,
    pub(crate) tensors: ParamTensors,
}

impl State {
    /// A state of these values, and no tensors.
    ///
    /// # Errors
    ///
    /// Serde's message on values that are no JSON, as maps whose keys are no text. A number that is infinite or NaN becomes JSON's null.
    pub fn of(values: &impl Serialize) -> Result<Self, String> {
        let values = serde_json::to_value(values).map_err(|error| error.to_string())?;
        Ok(Self {
            values,
            tensors: ParamTensors::default(),
        })
    }

    /// Adds a tensor of a parameter, without its autodiff: in f64 if it is, and in f32 otherwise. A handle: the device reads it when the
    /// record is written.
    pub fn with_tensor<const D: usize>(mut self, id: ParamId, tensor: Tensor<D>) -> Self {
        let dtype = working_dtype(tensor.dtype());
        let tensor = AnyTensor::new(tensor).cast(dtype);
        self.tensors.insert(id, tensor.into());
        self
    }

    /// The values.
    ///
    /// # Errors
    ///
    /// Serde's message on values of another type.
    pub fn values<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(&self.values).map_err(|error| error.to_string())
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

    /// Does what [`of`](Self::of) does, for plain data without maps or foreign types: there is no way for it to fail.
    pub(crate) fn plain(values: &impl Serialize) -> Self {
        Self::of(values).expect("a record is plain data")
    }

    /// Tensors without values.
    pub(super) fn of_tensors(tensors: ParamTensors) -> Self {
        let values = json!({});
        Self { values, tensors }
    }
}

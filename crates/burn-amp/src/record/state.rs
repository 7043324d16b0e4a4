//! A state that a record holds by its name. Knows no owner of one.

use burn::{
    module::ParamId,
    tensor::{Device, Tensor},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{dtype::working_dtype, param_tensors::ParamTensors};

/// The JSON of a state that is tensors alone, which is not written.
pub(super) const NO_VALUES: &str = "{}";

/// What a record stores of a [`Hook`](crate::hook::Hook): values that serde writes, and tensors by parameter.
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
        self.tensors.insert(id, tensor.cast(dtype));
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
        self.tensors.get(id, device)
    }

    /// The parameters that have a tensor here.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.tensors.ids()
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

/// A state that is stored by names of its own, as a hook's is not.
pub(super) struct Format {
    /// In a container its JSON is under `burn_amp.{name}`,
    pub(super) name: &'static str,
    /// and its tensors are `{id}.burn_amp.{tensors}`.
    pub(super) tensors: &'static str,
    /// The kind of a record that holds nothing else, and how a message names its owner; none if there are no such records.
    pub(super) alone: Option<[&'static str; 2]>,
    /// Refuses what no run can have stored.
    pub(super) check: fn(&State) -> Result<(), String>,
}

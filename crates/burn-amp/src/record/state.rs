//! A state that a record holds by its name. Knows no owner of one.

use burn::{
    module::ParamId,
    tensor::{Device, Tensor},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{dtype::working_dtype, param_tensors::ParamTensors};

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
}

/// A type whose values are a state: serde writes and reads all of it but its tensors.
pub(crate) trait Stored: Serialize + DeserializeOwned {
    /// In a container its JSON is under `burn_amp.{NAME}`.
    const NAME: &'static str;
    /// Its tensors are `{id}.burn_amp.{TENSORS}` there, if it has any.
    const TENSORS: Option<&'static str> = None;
    /// The kind of a record that holds nothing else, and how a message names its owner; none if there are no such records.
    const ALONE: Option<[&'static str; 2]> = None;

    /// Where the tensors are, if it has any.
    fn tensors(&mut self) -> Option<&mut ParamTensors> {
        None
    }

    /// What no run can have stored, if there is something.
    fn contradiction(&self, _tensors: &ParamTensors) -> Option<String> {
        None
    }

    fn into_state(mut self) -> State {
        let tensors = self.tensors().map(std::mem::take).unwrap_or_default();
        // Plain data without maps or foreign types: there is no way for it to fail.
        let json = serde_json::to_string(&self).expect("a record is plain data");
        State { json, tensors }
    }

    /// The values of a state, without its tensors. The error says what serde or the type refuses.
    fn values(state: &State) -> Result<Self, String> {
        let values: Self = state.values()?;
        let reason = values.contradiction(&state.tensors);
        reason.map_or(Ok(values), Err)
    }

    /// A state that was checked when it was read, or that this program has made.
    fn of_state(state: State) -> Self {
        let mut values = Self::values(&state).expect("a state that was checked");
        if let Some(tensors) = values.tensors() {
            *tensors = state.tensors;
        }
        values
    }
}

/// What a reader needs to know of a state: its names, and what it refuses.
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) tensors: Option<&'static str>,
    pub(super) alone: Option<[&'static str; 2]>,
    pub(super) check: fn(&State) -> Result<(), String>,
}

impl Format {
    pub(super) const fn of<S: Stored>() -> Self {
        Self {
            name: S::NAME,
            tensors: S::TENSORS,
            alone: S::ALONE,
            check: |state| S::values(state).map(drop),
        }
    }
}

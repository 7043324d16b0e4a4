//! The f32 copies of parameters on the optimizer's device, and their images on the training device.

use burn::{
    module::{Module, ParamId},
    tensor::{DType, Device, Shape},
};
use std::collections::HashMap;

use crate::{
    any_tensor::AnyTensor,
    dtype::{is_half, working_dtype},
    error::AmpError,
    module_path::{Parameter, distinct_parameters, replaced},
    param_tensors::ParamTensors,
};

/// Where the trainable parameters of a module are, and in what dtype.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Places(HashMap<ParamId, Place>);

#[derive(Clone, Debug, PartialEq)]
struct Place {
    /// In the module's order.
    index: usize,
    path: String,
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl Places {
    pub(super) fn of<M: Module>(module: &M) -> Self {
        let trained = distinct_parameters(module).into_iter();
        let trained = trained.filter(|parameter| parameter.is_trained);
        let place = |(index, parameter): (usize, Parameter)| {
            let place = Place {
                index,
                shape: parameter.value.shape(),
                dtype: parameter.value.dtype(),
                device: parameter.value.device(),
                path: parameter.path,
            };
            (parameter.id, place)
        };
        Self(trained.enumerate().map(place).collect())
    }

    /// Whether a parameter is narrower than its master, which then knows more of it.
    pub(super) fn has_half(&self) -> bool {
        self.0.values().any(|place| is_half(place.dtype))
    }

    /// Refuses a module with other parameters.
    pub(super) fn check(&self, other: &Self) -> Result<(), AmpError> {
        let changed = other.0.iter().filter_map(|(id, place)| {
            let reason = match self.0.get(id) {
                None => "was not there, or not trained",
                Some(known) if known.shape != place.shape || known.dtype != place.dtype => {
                    "has another shape or dtype"
                }
                Some(known) if known.device != place.device => "is on another device",
                Some(_) => return None,
            };
            Some((place, reason))
        });
        let gone = self.0.iter().filter(|(id, _)| !other.0.contains_key(id));
        let gone = gone.map(|(_, place)| (place, "is no longer there, or no longer trained"));
        match changed.chain(gone).min_by_key(|(place, _)| place.index) {
            None => Ok(()),
            Some((place, reason)) => Err(AmpError::other_module(&place.path, reason)),
        }
    }

    /// Refuses masters of a record that are not those of this module.
    pub(super) fn check_masters(&self, masters: &ParamTensors) -> Result<(), AmpError> {
        let misfit = |reason| AmpError::foreign("the record of the pipelined optimizer", reason);
        let known = self.0.keys().filter(|id| masters.contains(**id)).count();
        if known != self.0.len() || known != masters.len() {
            return Err(misfit(format!(
                "it holds master weights of {} parameters, of which {known} are among the {} that are trained here: load the model's own \
                 record too, which gives its parameters their ids back",
                masters.len(),
                self.0.len()
            )));
        }
        for (id, place) in &self.0 {
            if let Some(shape) = masters.shape(*id).filter(|shape| *shape != place.shape) {
                let (path, shape, expected) =
                    (&place.path, shape.as_slice(), place.shape.as_slice());
                return Err(misfit(format!(
                    "its master weight for `{path}` has shape {shape:?}, but the parameter has {expected:?}"
                )));
            }
        }
        Ok(())
    }

    /// The masters, of all parameters of their module: handles, to be stored.
    pub(super) fn masters(&self, parameters: Vec<Parameter>) -> ParamTensors {
        self.each(parameters, |master, _| master)
    }

    /// The trained parameters as the training device is to have them. Does not wait for that device.
    pub(super) fn images(&self, parameters: Vec<Parameter>) -> ParamTensors {
        self.each(parameters, |master, place| {
            master.cast_to(place.dtype.into(), &place.device)
        })
    }

    fn each(
        &self,
        parameters: Vec<Parameter>,
        value: impl Fn(AnyTensor, &Place) -> AnyTensor,
    ) -> ParamTensors {
        let trained = parameters.into_iter().filter_map(|parameter| {
            let place = self.0.get(&parameter.id)?;
            Some((parameter.id, value(parameter.value, place)))
        });
        trained.collect()
    }
}

/// A copy of the module whose trainable parameters are f32 (f64 ones stay f64) on another device: as those of a record say, or as
/// they are. The rest is a handle to what the module has, except for running statistics, which this copy has for itself.
pub(super) fn masters_of<M: Module>(
    module: &M,
    places: &Places,
    host: &Device,
    stored: &ParamTensors,
) -> M {
    let master = |Parameter { id, value, .. }| {
        let working = working_dtype(places.0.get(&id)?.dtype);
        let stored = stored.tensor(id).cloned();
        let value = stored.and_then(|stored| stored.live(host)).unwrap_or(value);
        Some(value.cast_to(working, host))
    };
    // `valid` gives it running statistics of its own.
    replaced(module.valid(), master).train()
}

/// The module with these values. Ids, trainability and what is attached stay.
pub(crate) fn put<M: Module>(module: M, image: &ParamTensors) -> M {
    replaced(module, |Parameter { id, value, .. }| {
        image.get_any(id, &value.device())
    })
}

/// The first parameter that is not what it was, bit for bit. Waits for the device.
pub(super) fn first_changed<M: Module>(module: &M, image: &ParamTensors) -> Option<String> {
    let has_changed = |parameter: &Parameter| {
        let known = image.tensor(parameter.id);
        let value = || parameter.value.clone().into_data();
        known.is_some_and(|known| known.to_data().as_bytes() != value().as_bytes())
    };
    let mut parameters = distinct_parameters(module).into_iter();
    parameters.find(has_changed).map(|parameter| parameter.path)
}

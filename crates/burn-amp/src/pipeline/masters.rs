//! The f32 copies of parameters on the optimizer's device, and their images on the training device.

use burn::{
    module::{Module, Param, ParamId},
    tensor::{DType, Device, FloatDType, Tensor},
};
use std::collections::HashMap;

use crate::{
    convert::replace_value,
    dtype::{is_half, working_dtype},
    error::AmpError,
    module_path::{self, ModulePath},
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
    shape: Vec<usize>,
    dtype: DType,
    device: Device,
}

impl Places {
    pub(super) fn of<M: Module>(module: &M) -> Self {
        let mut places = Self::default();
        module_path::visit(module, &mut places);
        places
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
            Some((place, reason)) => Err(AmpError::OtherModule {
                parameter: place.path.clone(),
                reason: reason.to_string(),
            }),
        }
    }

    /// Refuses masters of a record that are not those of this module.
    pub(super) fn check_masters(&self, masters: &ParamTensors) -> Result<(), AmpError> {
        let misfit = |reason| AmpError::ForeignRecord {
            origin: "the record of the pipelined optimizer".to_string(),
            reason,
        };
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
            let shape = masters.shape(*id).map(|shape| shape.to_vec());
            if let Some(shape) = shape.filter(|shape| *shape != place.shape) {
                let (path, expected) = (&place.path, &place.shape);
                return Err(misfit(format!(
                    "its master weight for `{path}` has shape {shape:?}, but the parameter has {expected:?}"
                )));
            }
        }
        Ok(())
    }
}

impl module_path::Visit for Places {
    fn parameter<const D: usize>(&mut self, path: &ModulePath, param: &Param<Tensor<D>>) {
        let value = param.base();
        if value.is_require_grad() && !self.0.contains_key(&param.id) {
            let place = Place {
                index: self.0.len(),
                path: path.join(),
                shape: value.shape().to_vec(),
                dtype: value.dtype(),
                device: value.device().inner(),
            };
            self.0.insert(param.id, place);
        }
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
    struct ToHost<'a> {
        places: &'a Places,
        host: &'a Device,
        stored: &'a ParamTensors,
    }

    impl module_path::Map for ToHost<'_> {
        fn parameter<const D: usize>(
            &mut self,
            _path: &ModulePath,
            param: Param<Tensor<D>>,
        ) -> Param<Tensor<D>> {
            if !self.places.0.contains_key(&param.id) {
                return param;
            }
            let stored = self.stored.get::<D>(param.id, self.host);
            param.map(|tensor| {
                let working = working_dtype(tensor.dtype());
                stored
                    .unwrap_or_else(|| tensor.to_device(self.host))
                    .cast(working)
            })
        }
    }

    let mut to_host = ToHost {
        places,
        host,
        stored,
    };
    // `valid` gives it running statistics of its own.
    module_path::map(module.valid(), &mut to_host).train()
}

/// The trained parameters as the training device is to have them. Does not wait for that device.
pub(super) fn image_of<M: Module>(masters: &M, places: &Places) -> ParamTensors {
    collect(masters, places, true)
}

/// The masters themselves, to be stored: handles.
pub(super) fn values_of<M: Module>(masters: &M, places: &Places) -> ParamTensors {
    collect(masters, places, false)
}

fn collect<M: Module>(masters: &M, places: &Places, in_place: bool) -> ParamTensors {
    struct Collect<'a> {
        places: &'a Places,
        in_place: bool,
        found: ParamTensors,
    }

    impl module_path::Visit for Collect<'_> {
        fn parameter<const D: usize>(&mut self, _path: &ModulePath, param: &Param<Tensor<D>>) {
            let Some(place) = self.places.0.get(&param.id) else {
                return;
            };
            let mut value = param.base().inner();
            if self.in_place {
                // Rounded here, so that less is moved.
                value = match value.dtype() == place.dtype {
                    true => value,
                    false => value.cast(FloatDType::from(place.dtype)),
                };
                value = value.to_device(&place.device);
            }
            self.found.insert(param.id, value);
        }
    }

    let mut collect = Collect {
        places,
        in_place,
        found: ParamTensors::default(),
    };
    module_path::visit(masters, &mut collect);
    collect.found
}

/// The module with these values, which are where its parameters are. Ids, trainability and what is attached stay.
pub(crate) fn put<M: Module>(module: M, image: &ParamTensors) -> M {
    struct Put<'a>(&'a ParamTensors);

    impl module_path::Map for Put<'_> {
        fn parameter<const D: usize>(
            &mut self,
            _path: &ModulePath,
            param: Param<Tensor<D>>,
        ) -> Param<Tensor<D>> {
            let (id, device) = (param.id, param.device().inner());
            match self.0.get::<D>(id, &device) {
                Some(value) => param.map(|tensor| replace_value(tensor, value, id)),
                None => param,
            }
        }
    }

    module_path::map(module, &mut Put(image))
}

/// The first parameter that is not what it was, bit for bit. Waits for the device.
pub(super) fn first_changed<M: Module>(module: &M, image: &ParamTensors) -> Option<String> {
    struct Compare<'a> {
        image: &'a ParamTensors,
        changed: Option<String>,
    }

    impl module_path::Visit for Compare<'_> {
        fn parameter<const D: usize>(&mut self, path: &ModulePath, param: &Param<Tensor<D>>) {
            if self.changed.is_some() {
                return;
            }
            let value = param.base().inner();
            if let Some(known) = self.image.get::<D>(param.id, &value.device())
                && known.to_data().as_bytes() != value.to_data().as_bytes()
            {
                self.changed = Some(path.join());
            }
        }
    }

    let mut compare = Compare {
        image,
        changed: None,
    };
    module_path::visit(module, &mut compare);
    compare.changed
}

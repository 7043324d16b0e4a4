//! The f32 copies of parameters on the optimizer's device, and their images on the training device.

use burn::module::{Module, ParamId};
use burn::tensor::Device;
use std::{collections::HashMap, sync::Arc};

use burn_amp_core::AmpError;
use burn_amp_core::internal::pipeline::Trained;
use burn_amp_core::internal::{
    AnyTensor, ParamTensor, ParamTensors, Parameter, distinct_parameters, replaced, working_dtype,
};

/// The parameters that an optimizer trains, in the order of the module.
pub(super) fn trained<M: Module>(module: &M) -> Trained {
    let mut trained = distinct_parameters(module);
    trained.retain(|parameter| parameter.is_trained);
    Arc::new(trained)
}

/// Refuses a module with other parameters than these, or, where it `compares`, with other values. That waits for the device.
pub(super) fn check<M: Module>(
    known: &Trained,
    module: &M,
    compares: bool,
) -> Result<(), AmpError> {
    let mut left = by_id(known);
    for found in trained(module).iter() {
        let value = &found.value;
        let data = |value: &AnyTensor| value.clone().into_data();
        let reason = match left.remove(&found.id) {
            None => "was not there, or not trained",
            Some(known) if known.shape() != value.shape() || known.dtype() != value.dtype() => {
                "has another shape or dtype"
            }
            Some(known) if known.device() != value.device() => "is on another device",
            Some(known) if compares && data(known).as_bytes() != data(value).as_bytes() => {
                "was changed since the last step"
            }
            Some(_) => continue,
        };
        return Err(AmpError::other_module(&found.path, reason));
    }
    match known.iter().find(|known| left.contains_key(&known.id)) {
        None => Ok(()),
        Some(gone) => {
            let reason = "is no longer there, or no longer trained";
            Err(AmpError::other_module(&gone.path, reason))
        }
    }
}

/// Refuses masters of a record, if there are some, that are not those of these parameters.
pub(super) fn check_stored(trained: &Trained, masters: &ParamTensors) -> Result<(), AmpError> {
    if masters.is_empty() {
        return Ok(());
    }
    let misfit = |reason| AmpError::foreign("the record of the pipelined optimizer", reason);
    let is_known = |found: &&Parameter| masters.contains_key(&found.id);
    let known = trained.iter().filter(is_known).count();
    if known != trained.len() || known != masters.len() {
        return Err(misfit(format!(
            "it holds master weights of {} parameters, of which {known} are among the {} that are trained here: load the model's own \
             record too, which gives its parameters their ids back",
            masters.len(),
            trained.len()
        )));
    }
    for found in trained.iter() {
        let (path, expected) = (&found.path, found.value.shape());
        let shape = masters.get(&found.id).map(ParamTensor::shape);
        if let Some(shape) = shape.filter(|shape| *shape != expected) {
            let (shape, expected) = (shape.as_slice(), expected.as_slice());
            return Err(misfit(format!(
                "its master weight for `{path}` has shape {shape:?}, but the parameter has {expected:?}"
            )));
        }
    }
    Ok(())
}

/// A copy of the module whose trained parameters are f32 (f64 ones stay f64) on another device: as those of a record say, or as
/// they are. The rest is a handle to what the module has, except for running statistics, which this copy has for itself.
pub(super) fn masters_of<M: Module>(
    module: &M,
    trained: &Trained,
    host: &Device,
    stored: &ParamTensors,
) -> M {
    let trained = by_id(trained);
    let master = |id, _: &dyn Fn() -> Parameter| {
        let value = *trained.get(&id)?;
        let working = working_dtype(value.dtype());
        let stored = stored.get(&id).cloned();
        let master = stored.and_then(|stored| stored.live(host));
        let master = master.unwrap_or_else(|| value.clone());
        Some(master.cast_to(working, host))
    };
    // `valid` gives it running statistics of its own.
    replaced(module.valid(), master).train()
}

/// The trained parameters as the training device is to have them. Does not wait for that device.
pub(super) fn images_of<M: Module>(masters: &M, trained: &Trained) -> Trained {
    let like = by_id(trained);
    let image = |master: Parameter| {
        let like = like.get(&master.id)?;
        let value = master.value.cast_to(like.dtype().into(), &like.device());
        Some(Parameter { value, ..master })
    };
    Arc::new(
        distinct_parameters(masters)
            .into_iter()
            .filter_map(image)
            .collect(),
    )
}

/// The masters themselves, to be stored: handles.
pub(super) fn values_of(masters: Vec<Parameter>, trained: &Trained) -> ParamTensors {
    let trained = by_id(trained);
    let masters = masters.into_iter();
    let masters = masters.filter(|master| trained.contains_key(&master.id));
    masters
        .map(|master| (master.id, master.value.into()))
        .collect()
}

/// The module with these values. Ids, trainability and what is attached stay.
pub(super) fn put<M: Module>(module: M, trained: &Trained) -> M {
    let trained = by_id(trained);
    replaced(module, |id, old| {
        let image = *trained.get(&id)?;
        Some(image.clone().moved_to(&old().value.device()))
    })
}

fn by_id(trained: &Trained) -> HashMap<ParamId, &AnyTensor> {
    let values = trained.iter().map(|found| (found.id, &found.value));
    values.collect()
}

//! An optimizer's state in a container: what can be known of it before a module says whose it is.

use burn::tensor::Shape;
use std::collections::BTreeMap;

use super::Container;
use crate::{error::AmpError, values::Parameter};

/// The tensors of a stored state: field and shape, by parameter.
#[derive(Clone, Debug)]
pub struct OptimizerState {
    origin: String,
    tensors: BTreeMap<u64, Vec<(String, Shape)>>,
    /// The rank that Burn rebuilds each state with.
    ranks: BTreeMap<u64, usize>,
}

impl OptimizerState {
    /// What an optimizer's container holds.
    ///
    /// # Errors
    ///
    /// If it is not an optimizer's, or the tensors of one parameter cannot belong to each other.
    pub(super) fn of(container: &Container) -> Result<Self, AmpError> {
        check_names(container).map_err(|reason| AmpError::foreign(&container.origin, reason))?;
        let ranks: BTreeMap<u64, usize> = (container.scalars.iter())
            .filter_map(|(name, value)| {
                let id = name.strip_suffix(".__rank")?.parse().ok()?;
                Some((id, usize::try_from(*value).ok()?))
            })
            .collect();
        let mut tensors: BTreeMap<u64, Vec<(String, Shape)>> = BTreeMap::new();
        for tensor in container.tensors.values() {
            let (name, shape) = (&tensor.name, tensor.shape.clone());
            let field = name.split_once('.').map_or("", |(_, field)| field);
            let id = tensor.param_id.unwrap_or_default();
            let rank = ranks.get(&id);
            if let Some(rank) = rank.filter(|rank| **rank != shape.num_dims()) {
                let reason =
                    format!("tensor `{name}` has shape {shape}, but rank {rank} is stored");
                return Err(container.damaged(reason));
            }
            let field = (field.to_string(), shape);
            tensors.entry(id).or_default().push(field);
        }
        Ok(Self {
            origin: container.origin.clone(),
            tensors,
            ranks,
        })
    }

    /// Refuses a module whose parameters have other shapes, before Burn broadcasts them; warns of state that would be lost.
    pub fn check(&self, parameters: Vec<Parameter>) -> Result<(), AmpError> {
        let mut unknown = self.tensors.clone();
        for parameter in parameters {
            let fields = unknown.remove(&parameter.id.val()).unwrap_or_default();
            if let Some(reason) = self.misfit(&parameter, &fields) {
                return Err(AmpError::foreign(&self.origin, reason));
            }
        }
        if !unknown.is_empty() {
            warn!(
                "the optimizer's state from {} is that of {} parameters, of which {} are not in this module: their state is not used. \
                 Load the model's own record too, which gives its parameters their ids back",
                self.origin,
                self.tensors.len(),
                unknown.len()
            );
        }
        Ok(())
    }

    /// Why these fields are not a parameter's state, if they are not.
    fn misfit(&self, parameter: &Parameter, fields: &[(String, Shape)]) -> Option<String> {
        let (path, expected) = (&parameter.path, parameter.shape());
        let dims = expected.num_dims();
        let rank = self.ranks.get(&parameter.id.val());
        if let Some(rank) = rank.filter(|rank| **rank != dims) {
            return Some(format!(
                "its state for `{path}` has rank {rank}, but the parameter has {dims}"
            ));
        }
        let misfit = |(field, shape): &&(String, Shape)| !fits(field, shape, &expected);
        let (field, shape) = fields.iter().find(misfit)?;
        Some(format!(
            "its state `{field}` for `{path}` has shape {shape}, but the parameter has {expected}"
        ))
    }
}

/// Every tensor and scalar of an optimizer's record is named after its parameter, `{id}.{field}`: Burn panics on
/// a tensor without an id, and takes a model's record for an empty optimizer's.
fn check_names(container: &Container) -> Result<(), String> {
    for tensor in container.tensors.values() {
        let id = tensor.param_id.map(|id| format!("{id}."));
        if !id.is_some_and(|id| tensor.name.starts_with(&id)) {
            return Err(format!(
                "tensor `{}` is not an optimizer's: not the record of an optimizer",
                tensor.name
            ));
        }
    }
    for (name, value) in &container.scalars {
        // Burn's optimizers count their steps, and would overflow.
        if name.ends_with(".time") && u64::try_from(*value).is_ok_and(|time| time > u64::MAX / 2) {
            return Err(format!("`{name}` is {value:?}: no run has counted so far"));
        }
        let id = name.split('.').next().unwrap_or_default();
        if id.parse::<u64>().is_err() {
            return Err(format!(
                "value `{name}` is not an optimizer's: not the record of an optimizer"
            ));
        }
    }
    Ok(())
}

/// Whether a tensor can be a parameter's state: an optimizer may keep one value for a whole row, but nothing larger.
fn fits(field: &str, shape: &Shape, parameter: &Shape) -> bool {
    let sizes = || shape.iter().zip(parameter.iter());
    shape.num_dims() == parameter.num_dims()
        && sizes().all(|(size, whole)| size == whole || (*size == 1 && field != "master"))
}

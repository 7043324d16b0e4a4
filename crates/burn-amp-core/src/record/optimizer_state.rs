//! The shapes of an optimizer's state, which are compared with a module's when there is one.

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
    /// Reads an optimizer's container, in which every tensor and scalar is named after its parameter, `{id}.{field}`.
    ///
    /// # Errors
    ///
    /// If it is not an optimizer's, or a tensor does not have the rank that is stored of its parameter.
    pub(super) fn of(container: &Container) -> Result<Self, AmpError> {
        let foreign = |what: &str, name: &str| {
            let reason =
                format!("{what} `{name}` is not an optimizer's: not the record of an optimizer");
            AmpError::foreign(&container.origin, reason)
        };
        let mut ranks = BTreeMap::new();
        for (name, value) in &container.scalars {
            // Burn's optimizers count their steps, and would overflow.
            if name.ends_with(".time")
                && u64::try_from(*value).is_ok_and(|time| time > u64::MAX / 2)
            {
                let reason = format!("`{name}` is {value:?}: no run has counted so far");
                return Err(AmpError::foreign(&container.origin, reason));
            }
            let (id, field) = name.split_once('.').unwrap_or((name, ""));
            let id: u64 = id.parse().map_err(|_| foreign("value", name))?;
            let rank = usize::try_from(*value).ok();
            ranks.extend(rank.filter(|_| field == "__rank").map(|rank| (id, rank)));
        }
        let mut tensors: BTreeMap<u64, Vec<(String, Shape)>> = BTreeMap::new();
        for tensor in container.tensors.values() {
            let (name, shape) = (&tensor.name, tensor.shape.clone());
            // Burn panics on a tensor without an id, and takes a model's record for an empty optimizer's.
            let of = tensor.param_id.and_then(|id| {
                let field = name.strip_prefix(&format!("{id}."))?;
                Some((id, field))
            });
            let (id, field) = of.ok_or_else(|| foreign("tensor", name))?;
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

    /// Says why these fields are not a parameter's state, if they are not.
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

/// True if a tensor can be a parameter's state: an optimizer may keep one value for a whole row, but nothing larger.
fn fits(field: &str, shape: &Shape, parameter: &Shape) -> bool {
    let sizes = || shape.iter().zip(parameter.iter());
    shape.num_dims() == parameter.num_dims()
        && sizes().all(|(size, whole)| size == whole || (*size == 1 && field != "master"))
}

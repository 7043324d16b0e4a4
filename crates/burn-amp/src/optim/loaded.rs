//! State that was loaded, until the first step shows whose it is.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, Shape, Tensor},
};
use std::collections::BTreeMap;

use crate::{error::AmpError, module_path::ModulePath, record::Container};

/// The tensors of a loaded state: field and shape, by parameter.
#[derive(Clone, Debug)]
pub(super) struct LoadedState {
    origin: String,
    tensors: BTreeMap<u64, Vec<(String, Shape)>>,
}

impl LoadedState {
    /// What an optimizer's container holds, whose tensors all have the id of a parameter.
    ///
    /// # Errors
    ///
    /// If the tensors of one parameter cannot belong to each other.
    pub(super) fn of(container: &Container) -> Result<Self, AmpError> {
        let mut tensors: BTreeMap<u64, Vec<(String, Shape)>> = BTreeMap::new();
        for tensor in container.tensors() {
            let field = tensor.name.split_once('.').map_or("", |(_, field)| field);
            if field == "master" && tensor.dtype != DType::F32 {
                let (name, dtype) = (&tensor.name, tensor.dtype.name());
                return Err(
                    container.damaged(format!("tensor `{name}` is {dtype}, but must be f32"))
                );
            }
            let field = (field.to_string(), tensor.shape.clone());
            let id = tensor.param_id.unwrap_or_default();
            tensors.entry(id).or_default().push(field);
        }
        for (id, fields) in &tensors {
            let master = fields.iter().find(|(field, _)| field == "master");
            let is_moment =
                |field: &str| field.rsplit('.').next().unwrap_or("").contains("moment_");
            let moment = fields.iter().find(|(field, _)| is_moment(field));
            for (field, shape) in fields {
                let clash = master.filter(|(_, whole)| !fits(field, shape, whole));
                let clash =
                    clash.or(moment.filter(|(_, other)| is_moment(field) && shape != other));
                if let Some((of, other)) = clash {
                    return Err(container.damaged(format!(
                        "tensor `{id}.{field}` has shape {shape}, but `{id}.{of}` has {other}"
                    )));
                }
            }
        }
        Ok(Self {
            origin: container.origin().to_string(),
            tensors,
        })
    }

    /// Refuses a module whose parameters have other shapes, before Burn broadcasts them; warns of state that would be lost.
    pub(super) fn check<M: Module>(&self, module: &M) -> Result<(), AmpError> {
        let mut check = Check {
            unknown: self.tensors.clone(),
            path: ModulePath::default(),
            misfit: None,
        };
        module.visit(&mut check);
        if let Some(reason) = check.misfit {
            let origin = self.origin.clone();
            return Err(AmpError::ForeignRecord { origin, reason });
        }
        if !check.unknown.is_empty() {
            log::warn!(
                "the optimizer's state from {} is that of {} parameters, of which {} are not in this module: their state is not used. \
                 Load the model's own record too, which gives its parameters their ids back",
                self.origin,
                self.tensors.len(),
                check.unknown.len()
            );
        }
        Ok(())
    }
}

/// Whether a tensor can be a parameter's state: an optimizer may keep one value for a whole row, but nothing larger.
fn fits(field: &str, shape: &Shape, parameter: &Shape) -> bool {
    let sizes = || shape.iter().zip(parameter.iter());
    shape.num_dims() == parameter.num_dims()
        && sizes().all(|(size, whole)| size == whole || (*size == 1 && field != "master"))
}

struct Check {
    unknown: BTreeMap<u64, Vec<(String, Shape)>>,
    path: ModulePath,
    misfit: Option<String>,
}

impl ModuleVisitor for Check {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let expected = param.shape();
        for (field, shape) in self.unknown.remove(&param.id.val()).unwrap_or_default() {
            if self.misfit.is_none() && !fits(&field, &shape, &expected) {
                let path = self.path.join();
                self.misfit = Some(format!(
                    "its state `{field}` for `{path}` has shape {shape}, but the parameter has {expected}"
                ));
            }
        }
    }
}

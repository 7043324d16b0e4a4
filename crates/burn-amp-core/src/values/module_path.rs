//! Walks over the float parameters of a module, with their paths.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Shape, Tensor};
use std::collections::HashSet;

use crate::values::AnyTensor;

/// The name of what a `MixedPrecision` attaches to a parameter.
pub const SCOPED: &str = "mixed_precision";

/// A float parameter of a module, or a running statistic: Burn does not distinguish them from frozen parameters.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its id.
    pub id: ParamId,
    /// Its name, as optimizers and records have it.
    pub path: String,
    /// The stored value: a handle.
    pub value: AnyTensor,
    /// True if it requires gradients.
    pub is_trained: bool,
}

impl Parameter {
    /// The parameter's id.
    pub fn id(&self) -> ParamId {
        self.id
    }

    /// Its path, as optimizers and records name it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns true if it requires gradients.
    pub fn is_trained(&self) -> bool {
        self.is_trained
    }

    /// Its value, without autodiff; of an applied step, the f32 master of a half-precision parameter whose optimizer keeps one. A handle to the
    /// same memory, which does not wait for the device.
    ///
    /// # Panics
    ///
    /// If its [rank](Self::shape) is not `D`.
    pub fn value<const D: usize>(&self) -> Tensor<D> {
        self.value.clone().into_tensor()
    }

    /// The shape of the value.
    pub fn shape(&self) -> Shape {
        self.value.shape()
    }

    pub(crate) fn of<const D: usize>(path: &[String], param: &Param<Tensor<D>>) -> Self {
        let value = param.base();
        Self {
            id: param.id,
            path: path.join("."),
            is_trained: value.is_require_grad(),
            value: AnyTensor::with_graph(value.inner()),
        }
    }
}

/// The float parameters of a module, in its order. One that two modules share stands here twice.
pub fn parameters<M: Module>(module: &M) -> Vec<Parameter> {
    let mut list = List::default();
    module.visit(&mut list);
    list.parameters
}

/// The float parameters of a module, each once: one that two modules share stands where it comes first.
pub fn distinct_parameters<M: Module>(module: &M) -> Vec<Parameter> {
    let mut seen = HashSet::new();
    let mut list = parameters(module);
    list.retain(|parameter| seen.insert(parameter.id));
    list
}

/// The ids of the parameters that have a gradient, each once, in the order in which Burn steps them: without the handles of [`parameters`].
pub fn ids_with_gradient<M: Module>(module: &M, grads: &GradientsParams) -> Vec<ParamId> {
    let (seen, ids) = (HashSet::new(), Vec::new());
    let mut found = WithGradient { grads, seen, ids };
    module.visit(&mut found);
    found.ids
}

/// The module with other values where `value` gives one of the parameter's rank, on whatever device. It is asked at each place of a parameter
/// that two modules share: by its id, and by a function for the rest of it, which does not know what is attached. Ids, trainability and what is
/// attached stay. Clones share running statistics: theirs are replaced too.
pub fn replaced<M: Module>(
    module: M,
    mut value: impl FnMut(ParamId, &dyn Fn() -> Parameter) -> Option<AnyTensor>,
) -> M {
    let (path, value) = (Vec::new(), &mut value);
    module.map(&mut Replace { path, value })
}

#[derive(Default)]
struct List {
    path: Vec<String>,
    parameters: Vec<Parameter>,
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.parameters.push(Parameter::of(&self.path, param));
    }
}

struct WithGradient<'a> {
    grads: &'a GradientsParams,
    seen: HashSet<ParamId>,
    ids: Vec<ParamId>,
}

impl ModuleVisitor for WithGradient<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.grads.get::<D>(param.id).is_some() && self.seen.insert(param.id) {
            self.ids.push(param.id);
        }
    }
}

type NewValue<'a> = dyn FnMut(ParamId, &dyn Fn() -> Parameter) -> Option<AnyTensor> + 'a;

/// Knows no type of a function, so that programs have its code once.
struct Replace<'a> {
    path: Vec<String>,
    value: &'a mut NewValue<'a>,
}

impl ModuleMapper for Replace<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let value = (self.value)(id, &|| Parameter::of(&self.path, &param));
        match value.filter(|value| value.rank() == D) {
            Some(value) => param.map(|old| leaf_like(&old, value.into_tensor(), id)),
            None => param,
        }
    }
}

/// Makes a value a leaf with all that the old one of its parameter carried for autodiff.
fn leaf_like<const D: usize>(old: &Tensor<D>, mut leaf: Tensor<D>, id: ParamId) -> Tensor<D> {
    if let Some(strategy) = old.gradient_checkpointing_strategy() {
        leaf = Tensor::from_inner(leaf).with_gradient_checkpointing_strategy(strategy);
    }
    if old.is_require_grad() {
        leaf = leaf.require_grad();
    }
    if old.is_autodiff() && old.is_distributed() {
        leaf = leaf.set_distributed(id);
    }
    leaf
}

//! Walks over the float parameters of a module, with their paths.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Shape, Tensor};
use std::collections::HashSet;

use crate::values::any_tensor::AnyTensor;

/// The name of what a `MixedPrecision` attaches to a parameter.
pub const SCOPED: &str = "mixed_precision";
/// What Burn calls the container of what is attached to a parameter.
const ATTACHED: &str = "Reparameterization";

/// A float parameter of a module, or a running statistic: Burn does not distinguish them from frozen parameters.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its id.
    pub id: ParamId,
    /// As optimizers and records name it.
    pub path: String,
    /// The stored value: a handle.
    pub value: AnyTensor,
    /// Whether it requires gradients.
    pub is_trained: bool,
    /// The name of what is attached to it.
    pub attached: Option<String>,
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

    /// Whether it requires gradients.
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

    fn of(path: &ModulePath, id: ParamId, value: AnyTensor) -> Self {
        Self {
            id,
            path: path.as_str().to_string(),
            is_trained: value.0.is_require_grad(),
            value: AnyTensor::new(value.0),
            attached: None,
        }
    }
}

/// The float parameters of a module, in its order. One that two modules share stands here twice.
pub fn parameters<M: Module>(module: &M) -> Vec<Parameter> {
    let mut list = List::default();
    module.visit(&mut list);
    list.parameters
}

/// As [`parameters`], but one that two modules share stands here once, where it comes first.
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
    let (path, value) = (ModulePath::default(), &mut value);
    module.map(&mut Replace { path, value })
}

/// Where a walk is: the path of a parameter, as optimizers and records name it.
#[derive(Default)]
pub struct ModulePath {
    path: String,
    /// Where the parents end.
    ends: Vec<usize>,
}

impl ModulePath {
    /// Into a module.
    pub fn enter(&mut self, name: &str) {
        self.ends.push(self.path.len());
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    /// Out of a module.
    pub fn exit(&mut self) {
        if let Some(end) = self.ends.pop() {
            self.path.truncate(end);
        }
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.path
    }
}

#[derive(Default)]
struct List {
    path: ModulePath,
    parameters: Vec<Parameter>,
}

impl ModuleVisitor for List {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // Burn shows a parameter first, and what is attached to it right behind.
        if container_type == ATTACHED
            && let Some(last) = self.parameters.last_mut()
            && last.path == self.path.as_str()
        {
            last.attached = Some(name.to_string());
        }
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = AnyTensor::with_graph(param.base());
        (self.parameters).push(Parameter::of(&self.path, param.id, value));
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
    path: ModulePath,
    value: &'a mut NewValue<'a>,
}

impl ModuleMapper for Replace<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let old = || AnyTensor::with_graph(param.base());
        let value = (self.value)(id, &|| Parameter::of(&self.path, id, old()));
        match value.filter(|value| value.rank() == D) {
            Some(value) => {
                param.map(|old| replace_value(AnyTensor::with_graph(old), value, id).into_handle())
            }
            None => param,
        }
    }
}

/// Puts a new value in the place of a parameter's: a leaf with all that the old one carried for autodiff.
fn replace_value(old: AnyTensor, new: AnyTensor, id: ParamId) -> AnyTensor {
    let (AnyTensor(old), AnyTensor(mut leaf)) = (old, new);
    let require_grad = old.is_require_grad();
    let checkpointing = old.gradient_checkpointing_strategy();
    let distributed = old.is_autodiff() && old.is_distributed();
    if let Some(strategy) = checkpointing {
        leaf = Tensor::from_inner(leaf).with_gradient_checkpointing_strategy(strategy);
    }
    if require_grad {
        leaf = leaf.require_grad();
    }
    if distributed {
        leaf = leaf.set_distributed(id);
    }
    AnyTensor(leaf)
}

//! Walks over the float parameters of a module, with their paths.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::Tensor,
};

/// Where a walk is: the path of a parameter, as optimizers and records name it.
#[derive(Default)]
pub(crate) struct ModulePath {
    path: String,
    /// Where the parents end.
    ends: Vec<usize>,
}

impl ModulePath {
    pub(crate) fn enter(&mut self, name: &str) {
        self.ends.push(self.path.len());
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    pub(crate) fn exit(&mut self) {
        if let Some(end) = self.ends.pop() {
            self.path.truncate(end);
        }
    }

    pub(crate) fn join(&self) -> String {
        self.path.clone()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.path
    }
}

/// Looks at float parameters.
pub(crate) trait Visit {
    fn parameter<const D: usize>(&mut self, path: &ModulePath, param: &Param<Tensor<D>>);

    /// Looks at what is entered: a field, or what is attached to a parameter, which comes right behind it.
    fn enter(&mut self, _path: &ModulePath, _name: &str, _container_type: &str) {}
}

/// Changes float parameters.
pub(crate) trait Map {
    fn parameter<const D: usize>(
        &mut self,
        path: &ModulePath,
        param: Param<Tensor<D>>,
    ) -> Param<Tensor<D>>;
}

/// Shows all float parameters of a module, in its order.
pub(crate) fn visit<M: Module>(module: &M, visitor: &mut impl Visit) {
    module.visit(&mut Walk::new(visitor));
}

/// Replaces all float parameters of a module.
pub(crate) fn map<M: Module>(module: M, mapper: &mut impl Map) -> M {
    module.map(&mut Walk::new(mapper))
}

struct Walk<'a, W> {
    path: ModulePath,
    walker: &'a mut W,
}

impl<'a, W> Walk<'a, W> {
    fn new(walker: &'a mut W) -> Self {
        Self {
            path: ModulePath::default(),
            walker,
        }
    }
}

impl<W: Visit> ModuleVisitor for Walk<'_, W> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.walker.enter(&self.path, name, container_type);
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.walker.parameter(&self.path, param);
    }
}

impl<W: Map> ModuleMapper for Walk<'_, W> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.walker.parameter(&self.path, param)
    }
}

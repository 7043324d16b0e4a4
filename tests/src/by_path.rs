//! Gradients by the paths of their parameters.

use crate::{prelude::*, values};

/// Path, dtype and values of every gradient, in the module's order.
pub fn gradients_by_path<M: Module>(
    grads: &GradientsParams,
    module: &M,
) -> Vec<(String, DType, Vec<f32>)> {
    struct Collect<'a> {
        grads: &'a GradientsParams,
        path: Vec<String>,
        found: Vec<(String, DType, Vec<f32>)>,
    }

    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.grads.get::<D>(param.id) {
                let path = self.path.join(".");
                self.found.push((path, grad.dtype(), values(grad)));
            }
        }
    }

    let mut collect = Collect {
        grads,
        path: Vec::new(),
        found: Vec::new(),
    };
    module.visit(&mut collect);
    collect.found
}

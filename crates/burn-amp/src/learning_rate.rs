//! Learning rates that no step can be taken with.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};

use crate::{error::AmpError, module_path::ModulePath};

/// Refuses a learning rate that is infinite or NaN: all parameters would be lost at once.
pub(crate) fn check_learning_rate<M: Module>(
    lr: &ModuleLearningRate,
    module: &M,
) -> Result<(), AmpError> {
    let mut check = Check {
        lr,
        path: ModulePath::default(),
        refused: None,
    };
    module.visit(&mut check);
    check.refused.map_or(Ok(()), Err)
}

struct Check<'a> {
    lr: &'a ModuleLearningRate,
    path: ModulePath,
    refused: Option<AmpError>,
}

impl ModuleVisitor for Check<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join();
        let lr = self.lr.lr_from_param(param.id, Some(&path));
        if !lr.is_finite() {
            let allowed = format!("finite (it is that of `{path}`)");
            let error = AmpError::invalid("lr", lr, allowed);
            self.refused.get_or_insert(error);
        }
    }
}

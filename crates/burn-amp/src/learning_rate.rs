//! Learning rates that no step can be taken with.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param},
    tensor::Tensor,
};

use crate::{
    loss_scale::InvalidValue,
    module_path::{self, ModulePath},
};

/// Refuses a learning rate that is infinite or NaN: all parameters would be lost at once.
pub(crate) fn check_learning_rate<M: Module>(
    lr: &ModuleLearningRate,
    module: &M,
) -> Result<(), InvalidValue> {
    let mut check = Check { lr, refused: None };
    module_path::visit(module, &mut check);
    check.refused.map_or(Ok(()), Err)
}

struct Check<'a> {
    lr: &'a ModuleLearningRate,
    refused: Option<InvalidValue>,
}

impl module_path::Visit for Check<'_> {
    fn parameter<const D: usize>(&mut self, path: &ModulePath, param: &Param<Tensor<D>>) {
        let path = path.join();
        let lr = self.lr.lr_from_param(param.id, Some(&path));
        if !lr.is_finite() {
            let allowed = format!("finite (it is that of `{path}`)");
            let error = InvalidValue::new("lr", lr, allowed);
            self.refused.get_or_insert(error);
        }
    }
}

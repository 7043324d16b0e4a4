use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::Tensor,
};

use crate::{leaf, module_path::ModulePath, param_tensors::ParamTensors};

/// Puts averages in the place of parameters, in the parameters' dtype and on their device. Ids and trainability stay. Does not
/// wait for the device.
pub(super) fn overwrite<M: Module>(module: M, averages: &ParamTensors) -> M {
    module.map(&mut Overwrite {
        averages,
        path: ModulePath::default(),
    })
}

struct Overwrite<'a> {
    averages: &'a ParamTensors,
    path: ModulePath,
}

impl ModuleMapper for Overwrite<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(known) = self.averages.shape(param.id) else {
            return param;
        };
        let shape = param.shape();
        if *known != shape {
            let path = self.path.join();
            log::warn!("`{path}` has shape {shape}, but its average has {known}: it is kept");
            return param;
        }
        let Some(average) = self.averages.get::<D>(param.id, &param.device().inner()) else {
            return param;
        };
        let id = param.id;
        param.map(|tensor| {
            let average = average.cast(tensor.dtype());
            leaf::replace(tensor, average, id)
        })
    }
}

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::Tensor,
};

use crate::{leaf, param_tensors::ParamTensors};

/// Puts averages in the place of parameters, in the parameters' dtype and on their device. Ids and trainability stay.
pub(super) fn overwrite<M: Module>(module: M, averages: &ParamTensors) -> M {
    module.map(&mut Overwrite { averages })
}

struct Overwrite<'a> {
    averages: &'a ParamTensors,
}

impl ModuleMapper for Overwrite<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(average) = self.averages.get::<D>(param.id, &param.device().inner()) else {
            return param;
        };
        if average.shape() != param.shape() {
            return param;
        }
        let id = param.id;
        param.map(|tensor| {
            let average = average.cast(tensor.dtype());
            leaf::replace(tensor, average, id)
        })
    }
}

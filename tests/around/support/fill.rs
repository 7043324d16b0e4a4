use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    tensor::{Tensor, TensorData},
};

/// The module with parameters, and ids from `from` on, that are the same in every run. Tests run side by side: a seed
/// would not do.
pub fn filled<M: Module>(module: M, from: usize) -> M {
    module.map(&mut Fill(from))
}

struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device) = (param.shape(), param.device());
        self.0 += 1000;
        let data = TensorData::new(wave(self.0, shape.num_elements()), shape);
        let value = Tensor::from_data(data, &device).require_grad();
        Param::initialized(ParamId::from(self.0 as u64), value)
    }
}

/// Numbers between -0.7 and 0.7.
pub fn wave(from: usize, count: usize) -> Vec<f32> {
    let value = |index: usize| (12.9898 * (index as f32 + 1.0)).sin() * 0.7;
    (from..from + count).map(value).collect()
}

//! Inputs and parameters that are the same in every run.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Device, Tensor, TensorData},
};

/// A tensor of values in (-1, 1).
pub fn tensor<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product();
    Tensor::from_data(TensorData::new(wave(7, count, 1.0), shape), device)
}

/// Gives every trainable parameter values of its own; running statistics stay.
pub fn fill<M: Module>(module: M) -> M {
    module.map(&mut Fill(0))
}

struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let (shape, device) = (param.shape(), param.device());
        self.0 += 1000;
        let data = TensorData::new(wave(self.0, shape.num_elements(), 0.6), shape);
        param.map(|_| Tensor::from_data(data, &device).require_grad())
    }
}

fn wave(from: usize, count: usize, height: f32) -> Vec<f32> {
    let value = |index: usize| (12.9898 * (index as f32 + 1.0)).sin() * height;
    (from..from + count).map(value).collect()
}

//! Parameters and inputs that are the same in every run.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Device, Tensor, TensorData},
};

/// An input with values between 0.5 and 1.5.
pub fn input<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let values = values(shape.iter().product(), 0.5).map(|value| value + 1.0);
    let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
    Tensor::from_data(data, &Device::flex().autodiff())
}

/// The same module with parameters between -0.4 and 0.4.
pub fn filled<M: Module>(module: M) -> M {
    struct Fill;

    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let shape = param.shape();
            let values = values(shape.num_elements(), 0.4).collect::<Vec<f32>>();
            let data = TensorData::new(values, shape);
            let value = Tensor::from_data(data, &param.device());
            Param::initialized(param.id, value.require_grad())
        }
    }

    module.map(&mut Fill)
}

/// Values in a range around zero that look random.
fn values(count: usize, range: f32) -> impl Iterator<Item = f32> {
    (1..=count).map(move |index| (12.9898 * index as f32).sin() * range)
}

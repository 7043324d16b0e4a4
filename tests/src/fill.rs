//! Parameters, inputs and other numbers that are the same in every run. Tests run side by side: a seed would not do.

use crate::prelude::*;
use burn::backend::{BackendTensor, DispatchTensorKind};

/// Burn's default device, with autodiff.
pub fn device() -> Device {
    Device::default().autodiff()
}

/// Flex, with autodiff.
pub fn flex() -> Device {
    Device::flex().autodiff()
}

/// Whether the device under test is Flex, whose memory tests can look at and whose sums are in f64.
pub fn on_flex() -> bool {
    Device::default() == Device::flex()
}

/// Numbers between -`height` and `height` that look random.
pub fn wave(from: usize, count: usize, height: f32) -> Vec<f32> {
    let value = |index: usize| (12.9898 * (index as f32 + 1.0)).sin() * height;
    (from..from + count).map(value).collect()
}

/// A tensor of numbers between -1 and 1 that look random.
pub fn random<const D: usize>(from: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let values = wave(from, shape.iter().product(), 1.0);
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The module whose trainable parameters have other such numbers each; running statistics stay.
pub fn fill<M: Module>(module: M, from: usize, height: f32) -> M {
    module.map(&mut Fill(from, height, false))
}

/// As [`fill`], with ids from `from` on, which are the same in every run too.
pub fn fill_with_ids<M: Module>(module: M, from: usize, height: f32) -> M {
    module.map(&mut Fill(from, height, true))
}

/// The first of the next parameter's numbers, their height, and whether there are ids.
struct Fill(usize, f32, bool);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let (shape, device) = (param.shape(), param.device());
        self.0 += 1000;
        let data = TensorData::new(wave(self.0, shape.num_elements(), self.1), shape);
        let value = Tensor::from_data(data, &device).require_grad();
        match self.2 {
            true => Param::initialized(ParamId::from(self.0 as u64), value),
            false => param.map(|_| value),
        }
    }
}

/// Where the values of a float tensor on Flex lie.
pub fn address<const D: usize>(tensor: impl Into<Option<Tensor<D>>>) -> *const u8 {
    match tensor.into().expect("a tensor").into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor.bytes().as_ptr(),
        _ => panic!("not a float tensor on Flex"),
    }
}

/// Gradients of every parameter, the same in every run: values that f16 holds, times `scale`, stored in `dtype`.
pub fn gradients<M: Module>(
    module: &M,
    step: usize,
    scale: f32,
    dtype: FloatDType,
) -> GradientsParams {
    let mut make = Make(GradientsParams::new(), 1000 * (step + 1), scale, dtype);
    module.visit(&mut make);
    make.0
}

/// The gradients so far, the last one's number, what they are multiplied by and stored in.
struct Make(GradientsParams, usize, f32, FloatDType);

impl ModuleVisitor for Make {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.shape();
        self.1 += 50;
        let value = |index: usize| ((index * 29 + self.1) % 128) as f32 / 64.0 - 1.0;
        let values = (0..shape.num_elements()).map(|index| value(index) * self.2);
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
        let grad = Tensor::<D>::from_data(data, &param.device().inner());
        self.0.register(param.id, grad.cast(self.3));
    }
}

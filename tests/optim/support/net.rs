//! A small model with parameters of ranks 1, 2 and 4, and deterministic data for it.

use burn::{
    module::{Module, ModuleMapper, Param},
    nn::{
        Linear, LinearConfig,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, TensorData, activation::tanh},
};

#[derive(Module, Debug)]
pub struct Net {
    pub stem: Option<Conv2d>,
    pub hidden: Linear,
    pub head: Linear,
}

impl Net {
    /// Ranks 1, 2 and 4.
    pub fn full(device: &Device) -> Self {
        let stem = Conv2dConfig::new([2, 2], [1, 1]).init(device);
        Self::new(Some(stem), true, device)
    }

    /// Rank 2 only, which is all that Muon takes.
    pub fn matrices(device: &Device) -> Self {
        Self::new(None, false, device)
    }

    fn new(stem: Option<Conv2d>, bias: bool, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(bias).init(device);
        let net = Self {
            stem,
            hidden: linear(8, 6),
            head: linear(6, 3),
        };
        net.map(&mut Fill(0))
    }

    pub fn loss(&self, (input, target): (Tensor<4>, Tensor<2>)) -> Tensor<1> {
        let input = match &self.stem {
            Some(stem) => stem.forward(input),
            None => input,
        };
        let hidden = tanh(self.hidden.forward(input.flatten(1, 3)));
        (self.head.forward(hidden) - target).square().mean()
    }
}

/// The inputs and targets of one step.
pub fn batch(step: usize, device: &Device) -> (Tensor<4>, Tensor<2>) {
    let rows = 5;
    let seed = 1000 * (step + 1);
    let input = TensorData::new(values(seed, rows * 8), [rows, 2, 2, 2]);
    let target = TensorData::new(values(seed + 500, rows * 3), [rows, 3]);
    (
        Tensor::from_data(input, device),
        Tensor::from_data(target, device),
    )
}

/// Gives every parameter the same values in every run.
struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device) = (param.shape(), param.device());
        let count = shape.num_elements();
        let data = TensorData::new(values(self.0, count), shape);
        self.0 += count;
        Param::initialized(param.id, Tensor::from_data(data, &device).require_grad())
    }
}

/// Values in (-1, 1) that look random.
fn values(from: usize, count: usize) -> Vec<f32> {
    let value = |index: usize| (12.9898 * (index as f32 + 1.0)).sin() * 0.8;
    (from..from + count).map(value).collect()
}

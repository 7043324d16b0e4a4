//! The two networks. They know nothing of precisions.

use burn::{
    module::{Module, ModuleMapper, Param},
    nn::{
        LeakyRelu, LeakyReluConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig},
    },
    tensor::{Device, Distribution, Tensor, activation::tanh},
};

/// Numbers that the generator starts from.
pub const NOISE: usize = 16;

/// Noise `[images, 16]`.
pub fn noise(images: usize, device: &Device) -> Tensor<2> {
    Tensor::random([images, NOISE], Distribution::Normal(0.0, 1.0), device)
}

/// Draws images.
#[derive(Module, Debug)]
pub struct Generator {
    input: Linear,
    upsample: ConvTranspose2d,
    output: Conv2d,
    activation: LeakyRelu,
}

impl Generator {
    /// A generator with random parameters.
    pub fn new(device: &Device) -> Self {
        let upsample = ConvTranspose2dConfig::new([16, 16], [2, 2]).with_stride([2, 2]);
        let output = Conv2dConfig::new([16, 1], [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            input: LinearConfig::new(NOISE, 16 * 4 * 4).init(device),
            upsample: upsample.init(device),
            output: output.init(device),
            activation: LeakyReluConfig::new().init(),
        }
    }

    /// Noise `[images, 16]` to images `[images, 1, 8, 8]`.
    pub fn forward(&self, noise: Tensor<2>) -> Tensor<4> {
        let [count, _] = noise.dims();
        let x = self.activation.forward(self.input.forward(noise));
        let x = self.upsample.forward(x.reshape([count, 16, 4, 4]));
        tanh(self.output.forward(self.activation.forward(x)))
    }
}

/// Gives scores to images.
#[derive(Module, Debug)]
pub struct Critic {
    input: Conv2d,
    hidden: Linear,
    output: Linear,
    activation: LeakyRelu,
}

impl Critic {
    /// A critic with random parameters.
    pub fn new(device: &Device) -> Self {
        let input = Conv2dConfig::new([1, 16], [4, 4]).with_stride([2, 2]);
        Self {
            input: input.init(device),
            hidden: LinearConfig::new(16 * 3 * 3, 64).init(device),
            output: LinearConfig::new(64, 1).init(device),
            activation: LeakyReluConfig::new().init(),
        }
    }

    /// Images `[images, 1, 8, 8]` to scores `[images, 1]`: large ones for what looks real.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.activation.forward(self.input.forward(images));
        let x = self.hidden.forward(x.flatten(1, 3));
        self.output.forward(self.activation.forward(x))
    }
}

/// Brings every weight between `-limit` and `limit`.
pub struct Clip {
    /// The largest weight.
    pub limit: f64,
}

impl ModuleMapper for Clip {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let clipped = tensor.inner().clamp(-self.limit, self.limit);
        Param::from_mapped_value(id, Tensor::from_inner(clipped).require_grad(), mapper)
    }
}

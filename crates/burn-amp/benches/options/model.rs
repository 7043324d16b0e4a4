use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn::{module::Module, tensor::activation::tanh};

/// Rows of an input.
pub const BATCH: usize = 32;

/// Four square layers.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    pub fn new(width: usize, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Self {
            layers: (0..4).map(layer).collect(),
        }
    }

    /// The loss of one batch of noise.
    pub fn loss(&self, device: &Device) -> Tensor<1> {
        let [width, _] = self.layers[0].weight.dims();
        let input = Tensor::<2>::random([BATCH, width], Distribution::Default, device);
        let output = self
            .layers
            .iter()
            .fold(input, |x, layer| tanh(layer.forward(x)));
        (output - 0.5).square().mean()
    }
}

//! The network: four sigmoid layers, whose derivatives (at most 1/4 each) make the gradients of the first ones small.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor, activation::sigmoid},
};

use crate::data::{CLASSES, PIXELS};

const HIDDEN: usize = 4;
const WIDTH: usize = 64;

/// 64 pixels, four hidden layers of 64, 10 logits.
#[derive(Module, Debug)]
pub struct Network {
    hidden: Vec<Linear>,
    output: Linear,
}

impl Network {
    /// A network with random parameters; the same ones after the same `Device::seed`.
    pub fn new(device: &Device) -> Self {
        let hidden = |layer| {
            let inputs = if layer == 0 { PIXELS } else { WIDTH };
            LinearConfig::new(inputs, WIDTH).init(device)
        };
        let network = Self {
            hidden: (0..HIDDEN).map(hidden).collect(),
            output: LinearConfig::new(WIDTH, CLASSES).init(device),
        };
        // Burn initializes lazily: now, so that all of it follows the seed that was just set.
        for layer in network.hidden.iter().chain([&network.output]) {
            layer.weight.val();
            layer.bias.as_ref().map(|bias| bias.val());
        }
        network
    }

    /// Images `[samples, 64]` to logits `[samples, 10]`, in the dtype of the images.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let hidden = (self.hidden.iter()).fold(images, |x, layer| sigmoid(layer.forward(x)));
        self.output.forward(hidden)
    }
}

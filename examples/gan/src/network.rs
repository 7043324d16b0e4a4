//! The two networks.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{
        Device, Tensor,
        activation::{leaky_relu, tanh},
    },
};
use digits::data::PIXELS;

/// Numbers that the generator starts from.
pub const NOISE: usize = 16;
const WIDTH: usize = 64;

/// Three layers: the generator if it goes from noise to pixels, the critic if it goes from pixels to a score.
#[derive(Module, Debug)]
pub struct Network {
    layers: Vec<Linear>,
}

impl Network {
    /// Noise `[samples, 16]` to images `[samples, 64]`.
    pub fn generator(device: &Device) -> Self {
        Self::new([NOISE, WIDTH, WIDTH, PIXELS], device)
    }

    /// Images `[samples, 64]` to scores `[samples, 1]`: above 0 for what looks real.
    pub fn critic(device: &Device) -> Self {
        Self::new([PIXELS, WIDTH, WIDTH, 1], device)
    }

    fn new(sizes: [usize; 4], device: &Device) -> Self {
        let layer = |sizes: &[usize]| {
            let layer = LinearConfig::new(sizes[0], sizes[1]).init(device);
            // Burn initializes lazily: now, so that all of it follows the seed that was just set.
            layer.weight.val();
            layer.bias.as_ref().map(|bias| bias.val());
            layer
        };
        Self {
            layers: sizes.windows(2).map(layer).collect(),
        }
    }

    /// What the last layer says, in the dtype of the input.
    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let last = self.layers.len() - 1;
        self.layers
            .iter()
            .enumerate()
            .fold(input, |x, (index, layer)| {
                let output = layer.forward(x);
                if index < last {
                    leaky_relu(output, 0.2)
                } else {
                    output
                }
            })
    }
}

/// Limits the generator's output to the range of standardized pixels, -0.85 to 1.95.
pub fn pixels(output: Tensor<2>) -> Tensor<2> {
    tanh(output) * 1.4 + 0.55
}

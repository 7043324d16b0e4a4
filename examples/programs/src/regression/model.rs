//! The network. It knows nothing of precisions.

use burn::{
    config::Config,
    module::Module,
    nn::{Linear, LinearConfig, Relu},
    tensor::{Device, Tensor},
};

use super::data::INPUTS;

/// The sizes of the network.
#[derive(Config, Debug)]
pub struct ModelConfig {
    /// Width of its hidden layers.
    #[config(default = 64)]
    pub hidden: usize,
}

/// Two hidden layers.
#[derive(Module, Debug)]
pub struct Model {
    input: Linear,
    hidden: Linear,
    output: Linear,
    activation: Relu,
}

impl ModelConfig {
    /// A network with random parameters.
    pub fn init(&self, device: &Device) -> Model {
        Model {
            input: LinearConfig::new(INPUTS, self.hidden).init(device),
            hidden: LinearConfig::new(self.hidden, self.hidden).init(device),
            output: LinearConfig::new(self.hidden, 1).init(device),
            activation: Relu::new(),
        }
    }
}

impl Model {
    /// Inputs `[points, 10]` to predictions `[points, 1]`.
    pub fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        let x = self.activation.forward(self.input.forward(inputs));
        let x = self.activation.forward(self.hidden.forward(x));
        self.output.forward(x)
    }
}

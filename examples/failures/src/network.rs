//! The network: attention over the rows of an image, in which one of three things is wrong.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{
        DType, Device, Tensor,
        activation::{relu, sigmoid, softmax},
    },
};
use burn_amp_report::probed;
use digits::data::{CLASSES, PIXELS};

use crate::Failure;

const ROWS: usize = 8;
const WIDTH: usize = 16;

/// Images `[samples, 64]` to logits `[samples, 10]`: 8 rows attend to each other.
#[derive(Module, Debug)]
pub struct Network {
    embed: Linear,
    query: Linear,
    key: Linear,
    hidden: Linear,
    output: Linear,
    #[module(skip)]
    failure: Failure,
}

impl Network {
    /// A network with random parameters; the same ones after the same `Device::seed`.
    pub fn new(failure: Failure, device: &Device) -> Self {
        let linear = |inputs, outputs| {
            let linear = LinearConfig::new(inputs, outputs).init(device);
            // Burn initializes lazily: now, so that all of it follows the seed that was just set.
            linear.weight.val();
            linear.bias.as_ref().map(|bias| bias.val());
            linear
        };
        Self {
            embed: linear(PIXELS / ROWS, WIDTH),
            query: linear(WIDTH, WIDTH),
            key: linear(WIDTH, WIDTH),
            hidden: linear(ROWS * WIDTH, 64),
            output: linear(64, CLASSES),
            failure,
        }
    }

    /// Computes in the dtype of the images.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let [samples, _] = images.dims();
        let rows = images.reshape([samples, ROWS, PIXELS / ROWS]);
        let x = probed("embed", rows, |x| self.embed.forward(x));
        let x = probed("attention", x, |x| self.attend(x));
        let x = x.reshape([samples, ROWS * WIDTH]);
        let x = probed("hidden", x, |x| relu(self.hidden.forward(x)));
        let x = probed("gate", x, |x| self.gate(x));
        probed("output", x, |x| self.output.forward(x))
    }

    fn attend(&self, x: Tensor<3>) -> Tensor<3> {
        let (query, key) = (self.query.forward(x.clone()), self.key.forward(x.clone()));
        let (query, key) = match self.failure {
            // Somebody has moved the division behind the product, and f16 does not hold the product.
            Failure::Overflow => (query * 500.0, key * 500.0),
            _ => (query, key),
        };
        let logits = query.matmul(key.swap_dims(1, 2));
        let logits = match self.failure {
            Failure::Overflow => logits / 250_000.0,
            _ => logits,
        };
        softmax(logits / (WIDTH as f64).sqrt(), 2).matmul(x)
    }

    fn gate(&self, x: Tensor<2>) -> Tensor<2> {
        match self.failure {
            // Each of them makes gradients smaller.
            Failure::Underflow => (0..3).fold(x, |x, _| sigmoid(x * 0.05)),
            // Stands for a kernel whose backward pass returns zeros in half precision, a symptom in tracel-ai/burn#5162.
            Failure::Backend if x.dtype() != DType::F32 => {
                x.clone().detach() + (x.clone() - x.detach()) * 0.0
            }
            _ => x,
        }
    }
}

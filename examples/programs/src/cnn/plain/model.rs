//! The network.

use burn::{
    config::Config,
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d, Relu,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
        pool::{MaxPool2d, MaxPool2dConfig},
    },
    tensor::{Device, Tensor},
    train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep},
};

use crate::cnn::data::{CLASSES, DigitBatch};

/// The sizes of the network.
#[derive(Config, Debug)]
pub struct ModelConfig {
    /// Channels of the first block; twice as many of the second.
    #[config(default = 8)]
    pub channels: usize,
}

/// Two blocks, each of which halves the image, and a linear layer.
#[derive(Module, Debug)]
pub struct Model {
    first: Block,
    second: Block,
    output: Linear,
}

/// Convolution, BatchNorm, ReLU, and the largest of four.
#[derive(Module, Debug)]
pub struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    activation: Relu,
    pool: MaxPool2d,
}

impl ModelConfig {
    /// A network with random parameters.
    pub fn init(&self, device: &Device) -> Model {
        Model {
            first: Block::new([1, self.channels], device),
            second: Block::new([self.channels, 2 * self.channels], device),
            output: LinearConfig::new(2 * self.channels * 2 * 2, CLASSES).init(device),
        }
    }
}

impl Block {
    fn new(channels: [usize; 2], device: &Device) -> Self {
        let conv = Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            conv: conv.with_bias(false).init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            activation: Relu::new(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    /// Images `[images, channels, height, width]` to more channels and half of height and width.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let x = self.conv.forward(images);
        let x = self.norm.forward(x);
        self.pool.forward(self.activation.forward(x))
    }
}

impl Model {
    /// Images `[images, 1, 8, 8]` to logits `[images, 10]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.second.forward(self.first.forward(images));
        self.output.forward(x.flatten(1, 3))
    }

    fn classify(&self, batch: DigitBatch) -> ClassificationOutput {
        let logits = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, logits, batch.targets)
    }
}

impl TrainStep for Model {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = DigitBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}

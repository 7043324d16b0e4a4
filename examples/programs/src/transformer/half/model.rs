//! The network.

use burn::{
    config::Config,
    module::Module,
    nn::{
        Embedding, EmbeddingConfig, Linear, LinearConfig,
        loss::CrossEntropyLossConfig,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    tensor::{Bool, Device, Int, Tensor},
    train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep},
};
use burn_amp::autocast;

use crate::transformer::data::{CLASSES, MAX_LENGTH, SentenceBatch, vocabulary_size};

/// The sizes of the network.
#[derive(Config, Debug)]
pub struct ModelConfig {
    /// Width of the network.
    #[config(default = 16)]
    pub d_model: usize,
    /// Width of the layers' middle.
    #[config(default = 32)]
    pub d_ff: usize,
    /// Heads of a layer.
    #[config(default = 4)]
    pub n_heads: usize,
    /// Layers.
    #[config(default = 2)]
    pub n_layers: usize,
}

/// A Transformer whose first output decides.
#[derive(Module, Debug)]
pub struct Model {
    tokens: Embedding,
    positions: Embedding,
    transformer: TransformerEncoder,
    output: Linear,
}

impl ModelConfig {
    /// A network with random parameters.
    pub fn init(&self, device: &Device) -> Model {
        let (d_model, d_ff) = (self.d_model, self.d_ff);
        Model {
            tokens: EmbeddingConfig::new(vocabulary_size(), d_model).init(device),
            positions: EmbeddingConfig::new(MAX_LENGTH, d_model).init(device),
            transformer: TransformerEncoderConfig::new(d_model, d_ff, self.n_heads, self.n_layers)
                .with_norm_first(true)
                .init(device),
            output: LinearConfig::new(d_model, CLASSES).init(device),
        }
    }
}

impl Model {
    /// Words `[sentences, length]`, and where they are padding, to logits `[sentences, 2]`.
    pub fn forward(&self, tokens: Tensor<2, Int>, mask: Tensor<2, Bool>) -> Tensor<2> {
        let [_, length] = tokens.dims();
        let positions = Tensor::arange(0..length as i64, &tokens.device()).unsqueeze();
        let x = self.tokens.forward(tokens) + self.positions.forward(positions);
        let x = TransformerEncoderInput::new(x).mask_pad(mask);
        let x = self.transformer.forward(x);
        self.output.forward(x.narrow(1, 0, 1).squeeze_dim(1))
    }

    fn classify(&self, batch: SentenceBatch) -> ClassificationOutput {
        let logits = autocast(batch.tokens, |x| self.forward(x, batch.mask));
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, logits, batch.targets)
    }
}

impl TrainStep for Model {
    type Input = SentenceBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: SentenceBatch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = SentenceBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: SentenceBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}

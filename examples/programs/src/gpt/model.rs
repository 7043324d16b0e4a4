//! The network. It knows nothing of precisions.

use burn::{
    config::Config,
    module::Module,
    nn::{
        Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        attention::generate_autoregressive_mask,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    tensor::{Device, Int, Tensor, TensorData},
};

use super::data::{ALPHABET, CONTEXT, tokens};

/// The sizes of the network.
#[derive(Config, Debug)]
pub struct ModelConfig {
    /// Width of the network.
    #[config(default = 32)]
    pub d_model: usize,
    /// Width of the layers' middle.
    #[config(default = 64)]
    pub d_ff: usize,
    /// Heads of a layer.
    #[config(default = 4)]
    pub n_heads: usize,
    /// Layers.
    #[config(default = 2)]
    pub n_layers: usize,
}

/// A Transformer that looks back only.
#[derive(Module, Debug)]
pub struct Model {
    tokens: Embedding,
    positions: Embedding,
    transformer: TransformerEncoder,
    norm: LayerNorm,
    output: Linear,
}

impl ModelConfig {
    /// A network with random parameters.
    pub fn init(&self, device: &Device) -> Model {
        let Self {
            d_model,
            d_ff,
            n_heads,
            n_layers,
        } = *self;
        let transformer = TransformerEncoderConfig::new(d_model, d_ff, n_heads, n_layers);
        Model {
            tokens: EmbeddingConfig::new(ALPHABET.len(), d_model).init(device),
            positions: EmbeddingConfig::new(CONTEXT, d_model).init(device),
            transformer: transformer
                .with_norm_first(true)
                .with_dropout(0.0)
                .init(device),
            norm: LayerNormConfig::new(d_model).init(device),
            output: LinearConfig::new(d_model, ALPHABET.len()).init(device),
        }
    }
}

impl Model {
    /// Tokens `[texts, length]`, 24 at most, to the logits of those that follow, `[texts * length, 13]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let [count, length] = tokens.dims();
        let device = tokens.device();
        let positions = Tensor::arange(0..length as i64, &device).unsqueeze();
        let x = self.tokens.forward(tokens) + self.positions.forward(positions);
        let mask = generate_autoregressive_mask(count, length, &device);
        let x = TransformerEncoderInput::new(x).mask_attn(mask);
        let x = self.norm.forward(self.transformer.forward(x));
        self.output.forward(x).flatten(0, 1)
    }

    /// Goes on writing, the most likely character each time, to the end of the line.
    pub fn complete(&self, prompt: &str, device: &Device) -> String {
        let mut text = prompt.to_string();
        while text.len() < CONTEXT && !text.ends_with('\n') {
            let tokens = tokens(&text);
            let data = TensorData::new(tokens, [1, text.len()]);
            let logits = self.forward(Tensor::from_data(data, device));
            let last = logits.narrow(0, text.len() - 1, 1);
            let token = last.argmax(1).into_scalar::<i64>();
            text.extend(ALPHABET.chars().nth(token as usize));
        }
        text.trim_end().to_string()
    }
}

//! The network.
use burn::{
    module::Module,
    nn::{
        Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        attention::generate_autoregressive_mask,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    tensor::{Device, Int, Tensor},
};

/// A GPT.
#[derive(Module, Debug)]
pub struct Gpt {
    token: Embedding,
    position: Embedding,
    blocks: TransformerEncoder,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    /// New.
    pub fn new(
        vocab: usize,
        context: usize,
        width: usize,
        layers: usize,
        heads: usize,
        device: &Device,
    ) -> Self {
        Self {
            token: EmbeddingConfig::new(vocab, width).init(device),
            position: EmbeddingConfig::new(context, width).init(device),
            blocks: TransformerEncoderConfig::new(width, 4 * width, heads, layers)
                .with_norm_first(true)
                .with_dropout(0.0)
                .init(device),
            norm: LayerNormConfig::new(width).init(device),
            head: LinearConfig::new(width, vocab)
                .with_bias(false)
                .init(device),
        }
    }

    /// `[rows, length]` to `[rows * length, vocabulary]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let [rows, length] = tokens.dims();
        let device = tokens.device();
        let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
        let x = self.token.forward(tokens) + self.position.forward(places);
        let mask = generate_autoregressive_mask(rows, length, &device);
        let x = self
            .blocks
            .forward(TransformerEncoderInput::new(x).mask_attn(mask));
        let _ = (rows, length);
        self.head.forward(self.norm.forward(x)).flatten(0, 1)
    }
}

//! A small GPT of Burn's layers, with their default initialization.

use burn::{
    module::Module,
    nn::{
        Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
        attention::generate_autoregressive_mask,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    tensor::{Device, Int, Tensor},
};

/// Tells from the tokens so far which comes next.
#[derive(Module, Debug)]
pub struct Gpt {
    token: Embedding,
    position: Embedding,
    blocks: TransformerEncoder,
    norm: LayerNorm,
    head: Option<Linear>,
}

/// How large a [`Gpt`] is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Tokens that it sees at once.
    pub context: usize,
    /// Values of a token.
    pub width: usize,
    /// Parts of the width that attend by themselves; they divide it.
    pub heads: usize,
    /// Blocks of attention and feed-forward network.
    pub layers: usize,
    /// Whether the last layer's weights are those of the tokens' embedding, as in GPT-2.
    pub tied: bool,
}

impl Gpt {
    /// A network with random parameters.
    pub fn new(vocabulary: usize, size: Size, device: &Device) -> Self {
        let Size {
            context,
            width,
            heads,
            layers,
            tied,
        } = size;
        let mut token = EmbeddingConfig::new(vocabulary, width);
        if tied {
            // GPT-2's: with Burn's, logits would be too large.
            token = token.with_initializer(Initializer::Normal {
                mean: 0.0,
                std: 0.02,
            });
        }
        let head = LinearConfig::new(width, vocabulary).with_bias(false);
        Self {
            token: token.init(device),
            position: EmbeddingConfig::new(context, width).init(device),
            blocks: TransformerEncoderConfig::new(width, 4 * width, heads, layers)
                .with_norm_first(true)
                .with_dropout(0.0)
                .init(device),
            norm: LayerNormConfig::new(width).init(device),
            head: (!tied).then(|| head.init(device)),
        }
    }

    /// From tokens `[windows, length]` to the logits of the next ones, `[windows * length, vocabulary]`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let [windows, length] = tokens.dims();
        let device = tokens.device();
        let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
        let x = self.token.forward(tokens) + self.position.forward(places);
        let mask = generate_autoregressive_mask(windows, length, &device);
        let x = TransformerEncoderInput::new(x).mask_attn(mask);
        let x = self.norm.forward(self.blocks.forward(x));
        let x = x.flatten::<2>(0, 1);
        match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul(self.token.weight.val().transpose()),
        }
    }
}

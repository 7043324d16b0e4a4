//! MultiHeadAttention and TransformerEncoder, with and without masks.

use burn::{
    nn::{
        attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask},
        transformer::{TransformerEncoderConfig, TransformerEncoderInput},
    },
    tensor::{Bool, Device, Tensor},
};

use crate::support::{check, tensor};

fn padding(device: &Device) -> Tensor<2, Bool> {
    Tensor::from_data(
        [
            [false, false, false, true, true],
            [false, false, false, false, true],
        ],
        device,
    )
}

#[test]
fn multi_head_attention() {
    for quiet in [false, true] {
        check(
            |device| {
                let config = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
                config.with_quiet_softmax(quiet).init(device)
            },
            &[],
            |attention, precision, device| {
                let input = precision.cast(tensor([2, 5, 8], device));
                attention.forward(MhaInput::self_attn(input)).context
            },
        );
    }
}

/// Masked scores are set to -10000, which f16 can hold.
#[test]
fn multi_head_attention_with_masks() {
    check(
        |device| {
            let config = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
            config.init(device)
        },
        &[],
        |attention, precision, device| {
            let input = precision.cast(tensor([2, 5, 8], device));
            let input = MhaInput::self_attn(input)
                .mask_pad(padding(device))
                .mask_attn(generate_autoregressive_mask(2, 5, device));
            attention.forward(input).context
        },
    );
}

#[test]
fn transformer_encoder() {
    for norm_first in [false, true] {
        check(
            |device| {
                let config = TransformerEncoderConfig::new(8, 12, 2, 2).with_dropout(0.0);
                config.with_norm_first(norm_first).init(device)
            },
            &[],
            |encoder, precision, device| {
                let input = precision.cast(tensor([2, 5, 8], device));
                let input = TransformerEncoderInput::new(input).mask_pad(padding(device));
                encoder.forward(input)
            },
        );
    }
}

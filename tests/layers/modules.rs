//! The folder `modules` of burn-nn.

use burn::{
    nn::attention::*, nn::conv::*, nn::interpolate::*, nn::norm::NormalizationConfig, nn::pool::*,
    nn::transformer::*, nn::*,
};

use super::support::*;

/// The last two of a row, and the last of another.
fn padding(device: &Device) -> Tensor<2, Bool> {
    Tensor::<2, Int>::from_data([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], device).equal_elem(1)
}

fn attention() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0)
}

fn resizing() -> Interpolate2dConfig {
    Interpolate2dConfig::new().with_output_size(Some([5, 7]))
}

fn encoder() -> TransformerEncoderConfig {
    TransformerEncoderConfig::new(8, 12, 2, 2).with_dropout(0.0)
}

layers! {
    identity: "Identity", AsItIs, |_| Identity::new(), [2, 3];
    linear: "Linear", AsItIs, |device| LinearConfig::new(6, 5).init(device), [7, 6];
    // Stores its weight transposed, through Burn's own mappers at load and save.
    linear_by_columns: "Linear", AsItIs,
        |device| LinearConfig::new(6, 5).with_layout(LinearLayout::Col).init(device), [2, 7, 6];
    // Frozen parameters are cast too, and have no gradients.
    linear_after_a_frozen_one: "Linear", AsItIs,
        |device| [LinearConfig::new(6, 4).init(device).no_grad(), LinearConfig::new(4, 3).init(device)],
        [5, 6], |layers: &[Linear; 2], x, _| layers[1].forward(layers[0].forward(x));
    embedding: "Embedding", AsItIs, |device| EmbeddingConfig::new(9, 4).init(device), [1],
        |layer, _, device| layer.forward(Tensor::<2, Int>::from_data([[0, 3, 8], [3, 1, 7]], device));
    dropout: "Dropout", AsItIs, |_| DropoutConfig::new(0.4).init(), [4, 6];
    gaussian_noise: "GaussianNoise", InF32, |_| GaussianNoiseConfig::new(0.5).init(), [4, 6];

    conv1d: "Conv1d", AsItIs, |device| Conv1dConfig::new(2, 3, 3).init(device), [2, 2, 7];
    conv2d: "Conv2d", AsItIs, |device| Conv2dConfig::new([2, 3], [3, 3]).init(device), [2, 2, 6, 5];
    conv2d_in_groups: "Conv2d", AsItIs,
        |device| Conv2dConfig::new([4, 6], [2, 2]).with_groups(2).with_stride([2, 1]).init(device),
        [2, 4, 5, 4];
    conv3d: "Conv3d", AsItIs, |device| Conv3dConfig::new([2, 3], [2, 2, 2]).init(device),
        [2, 2, 3, 4, 3];
    conv_transpose1d: "ConvTranspose1d", AsItIs,
        |device| ConvTranspose1dConfig::new([2, 3], 3).init(device), [2, 2, 4];
    conv_transpose2d: "ConvTranspose2d", AsItIs,
        |device| ConvTranspose2dConfig::new([2, 3], [3, 3]).init(device), [2, 2, 4, 3];
    conv_transpose3d: "ConvTranspose3d", AsItIs,
        |device| ConvTranspose3dConfig::new([2, 3], [2, 2, 2]).init(device), [2, 2, 2, 3, 2];
    deform_conv2d: "DeformConv2d", AsItIs,
        |device| DeformConv2dConfig::new([2, 3], [2, 2]).init(device), [2, 2, 4, 4],
        |layer, x, device| {
            let offset = (tensor([2, 8, 3, 3], device) * 0.5).cast(x.dtype());
            let mask = tensor([2, 4, 3, 3], device).cast(x.dtype());
            layer.forward(x, offset, Some(mask))
        };

    layer_norm: "LayerNorm", AsItIs, |device| LayerNormConfig::new(6).init(device), [4, 3, 6];
    rms_norm: "RmsNorm", AsItIs, |device| RmsNormConfig::new(6).init(device), [4, 3, 6];
    group_norm: "GroupNorm", AsItIs, |device| GroupNormConfig::new(2, 6).init(device), [3, 6, 4, 2];
    instance_norm: "InstanceNorm", AsItIs, |device| InstanceNormConfig::new(6).init(device),
        [3, 6, 4, 2];
    local_response_norm: "LocalResponseNorm", AsItIs, |_| LocalResponseNormConfig::new(3).init(),
        [2, 5, 3, 3];
    // Running statistics in f32.
    batch_norm: "BatchNorm", InF32, |device| BatchNormConfig::new(3).init(device), [4, 3, 5];
    normalization: "Normalization", AsItIs,
        |device| NormalizationConfig::from(LayerNormConfig::new(6)).init(device), [4, 6];

    avg_pool1d: "AvgPool1d", AsItIs, |_| AvgPool1dConfig::new(2).init(), [2, 2, 6];
    avg_pool2d: "AvgPool2d", AsItIs, |_| AvgPool2dConfig::new([2, 2]).init(), [2, 2, 4, 5];
    max_pool1d: "MaxPool1d", AsItIs, |_| MaxPool1dConfig::new(2).init(), [2, 2, 6];
    max_pool2d: "MaxPool2d", AsItIs, |_| MaxPool2dConfig::new([2, 2]).init(), [2, 2, 4, 5];
    adaptive_avg_pool1d: "AdaptiveAvgPool1d", AsItIs, |_| AdaptiveAvgPool1dConfig::new(3).init(),
        [2, 2, 7];
    adaptive_avg_pool2d: "AdaptiveAvgPool2d", AsItIs,
        |_| AdaptiveAvgPool2dConfig::new([3, 2]).init(), [2, 2, 5, 3];
    adaptive_avg_pool3d: "AdaptiveAvgPool3d", AsItIs,
        |_| AdaptiveAvgPool3dConfig::new([2, 2, 1]).init(), [1, 2, 3, 4, 3];

    fold4d: "Fold4d", AsItIs, |_| Fold4dConfig::new([4, 4], [2, 2]).init(), [2, 4, 9];
    unfold4d: "Unfold4d", AsItIs, |_| Unfold4dConfig::new([2, 2]).init(), [2, 2, 4, 3];
    pixel_shuffle: "PixelShuffle", AsItIs, |_| PixelShuffleConfig::new(2).init(), [2, 4, 3, 2];
    pixel_unshuffle: "PixelUnshuffle", AsItIs, |_| PixelUnshuffleConfig::new(2).init(),
        [2, 1, 4, 6];
    interpolate1d: "Interpolate1d", AsItIs,
        |_| Interpolate1dConfig::new().with_scale_factor(Some(2.0)).init(), [2, 2, 4];
    interpolate2d: "Interpolate2d", AsItIs, |_| resizing().init(), [2, 2, 4, 3];
    interpolate2d_linear: "Interpolate2d", AsItIs,
        |_| resizing().with_mode(InterpolateMode::Linear).init(), [2, 2, 4, 3];

    cosine_similarity: "CosineSimilarity", AsItIs, |_| CosineSimilarityConfig::new().init(), [5, 4],
        |layer, x, _| layer.forward(x.clone(), x.flip([1]));
    pairwise_distance: "PairwiseDistance", AsItIs, |_| PairwiseDistanceConfig::new().init(), [5, 4],
        |layer, x, _| layer.forward(x.clone(), x.flip([1]));

    // Sinusoids and frequencies in f32.
    positional_encoding: "PositionalEncoding", InF32,
        |device| PositionalEncodingConfig::new(6).with_max_sequence_size(8).init(device), [2, 3, 6];
    rotary_encoding: "RotaryEncoding", InF32, |device| RotaryEncodingConfig::new(8, 6).init(device),
        [2, 3, 6];

    multi_head_attention: "MultiHeadAttention", AsItIs, |device| attention().init(device),
        [2, 5, 8], |layer, x, _| layer.forward(MhaInput::self_attn(x)).context;
    multi_head_attention_quiet: "MultiHeadAttention", AsItIs,
        |device| attention().with_quiet_softmax(true).init(device),
        [2, 5, 8], |layer, x, _| layer.forward(MhaInput::self_attn(x)).context;
    // Masked scores are set to -10000, which f16 can hold.
    multi_head_attention_masked: "MultiHeadAttention", AsItIs, |device| attention().init(device),
        [2, 5, 8], |layer, x, device| {
            let input = MhaInput::self_attn(x).mask_pad(padding(device));
            layer.forward(input.mask_attn(generate_autoregressive_mask(2, 5, device))).context
        };
    cross_attention: "CrossAttention", AsItIs,
        |device| CrossAttentionConfig::new(8, 8, 2, 1, 4).with_dropout(0.0).init(device),
        [2, 5, 8], |layer, x, device| layer.forward(x.clone(), x, Some(padding(device)));
    transformer_encoder: "TransformerEncoder", AsItIs, |device| encoder().init(device), [2, 5, 8],
        |layer, x, on| layer.forward(TransformerEncoderInput::new(x).mask_pad(padding(on)));
    transformer_encoder_norm_first: "TransformerEncoder", AsItIs,
        |device| encoder().with_norm_first(true).init(device), [2, 5, 8],
        |layer, x, _| layer.forward(TransformerEncoderInput::new(x));
    transformer_encoder_layer: "TransformerEncoderLayer", AsItIs,
        |device| TransformerEncoderLayer::new(&encoder(), device), [2, 5, 8],
        |layer, x, _| layer.forward(x, None, None);
    transformer_decoder: "TransformerDecoder", AsItIs,
        |device| TransformerDecoderConfig::new(8, 12, 2, 2).with_dropout(0.0).init(device),
        [2, 5, 8], |layer, x, device| {
            let mask = generate_autoregressive_mask(2, 5, device);
            let input = TransformerDecoderInput::new(x.clone(), x.flip([1]));
            layer.forward(input.target_mask_attn(mask))
        };
    position_wise_feed_forward: "PositionWiseFeedForward", AsItIs,
        |device| PositionWiseFeedForwardConfig::new(6, 8).with_dropout(0.0).init(device),
        [2, 3, 6];

    // States and output buffers in f32.
    rnn: "Rnn", InF32, |device| RnnConfig::new(5, 3, true).init(device), [2, 4, 5],
        |layer, x, _| layer.forward(x, None).0;
    bi_rnn: "BiRnn", InF32, |device| BiRnnConfig::new(5, 3, true).init(device), [2, 4, 5],
        |layer, x, _| layer.forward(x, None).0;
    gru: "Gru", InF32, |device| GruConfig::new(5, 3, true).init(device), [2, 4, 5],
        |layer, x, _| layer.forward(x, None);
    bi_gru: "BiGru", InF32, |device| BiGruConfig::new(5, 3, true).init(device), [2, 4, 5],
        |layer, x, _| layer.forward(x, None).0;
    lstm: "Lstm", InF32, |device| LstmConfig::new(5, 3, true).init(device), [2, 4, 5],
        |layer, x, _| layer.forward(x, None).0;
    bi_lstm: "BiLstm", InF32, |device| BiLstmConfig::new(5, 3, true).init(device), [2, 4, 5],
        |layer, x, _| layer.forward(x, None).0;
    // A state in f16 does not help the GRU, whose output buffer is f32.
    gru_with_a_state: "Gru", InF32, |device| GruConfig::new(5, 3, true).init(device), [2, 4, 5],
        |layer, x, device| {
            let state = tensor([2, 3], device).cast(x.dtype());
            layer.forward(x, Some(state))
        };
}

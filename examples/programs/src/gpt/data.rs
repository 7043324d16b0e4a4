//! Sums, as text: `7+35=42`, one after the other.

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    tensor::{Device, Int, Tensor, TensorData},
};
use std::sync::Arc;

use super::TrainingConfig;
use crate::random::Random;

/// The characters; a token is an index into them.
pub const ALPHABET: &str = "0123456789+=\n";
/// Characters that the model sees.
pub const CONTEXT: usize = 24;

/// The tokens of a text, of characters of the alphabet only.
pub fn tokens(text: &str) -> Vec<i64> {
    let indices = text.chars().filter_map(|c| ALPHABET.find(c));
    indices.map(|index| index as i64).collect()
}

/// Some texts.
#[derive(Clone, Debug)]
pub struct TextBatch {
    /// Tokens `[texts, 24]`.
    pub inputs: Tensor<2, Int>,
    /// The tokens that follow each of them, `[texts, 24]`.
    pub targets: Tensor<2, Int>,
}

/// Makes batches.
#[derive(Clone, Debug)]
pub struct TextBatcher;

impl Batcher<Vec<i64>, TextBatch> for TextBatcher {
    fn batch(&self, texts: Vec<Vec<i64>>, device: &Device) -> TextBatch {
        let tensor = |range: std::ops::Range<usize>| {
            let tokens: Vec<i64> = texts
                .iter()
                .flat_map(|t| &t[range.clone()])
                .copied()
                .collect();
            Tensor::from_data(TensorData::new(tokens, [texts.len(), CONTEXT]), device)
        };
        TextBatch {
            inputs: tensor(0..CONTEXT),
            targets: tensor(1..CONTEXT + 1),
        }
    }
}

/// A loader of texts.
pub type Loader = Arc<dyn DataLoader<TextBatch>>;

/// 512 texts to train on, shuffled anew for each epoch, and 64 others; those on a device without autodiff.
///
/// They have sums of numbers below 20, of which no sum is in both.
pub fn loaders(config: &TrainingConfig, device: &Device) -> (Loader, Loader) {
    let mut random = Random(config.seed);
    let mut texts = |count, valid: bool| {
        let texts = (0..count).map(|_| {
            let mut text = String::new();
            while text.len() <= CONTEXT {
                let (a, b) = (random.below(20), random.below(20));
                if ((a * 20 + b) % 9 == 0) == valid {
                    text += &format!("{a}+{b}={}\n", a + b);
                }
            }
            let mut tokens = tokens(&text);
            tokens.truncate(CONTEXT + 1);
            tokens
        });
        InMemDataset::new(texts.collect())
    };
    let builder = || DataLoaderBuilder::new(TextBatcher).batch_size(config.batch_size);
    let train = builder().shuffle(config.seed).set_device(device.clone());
    let valid = builder().set_device(device.clone().inner());
    (train.build(texts(512, false)), valid.build(texts(64, true)))
}

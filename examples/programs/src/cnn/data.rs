//! Images of digits and their labels, as batches.

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    tensor::{Device, Int, Tensor, TensorData},
};
use std::sync::Arc;

use super::TrainingConfig;
use crate::{
    Result,
    digits::{self, Digit},
};

/// Digits to tell apart.
pub const CLASSES: usize = 10;

/// Some images.
#[derive(Clone, Debug)]
pub struct DigitBatch {
    /// `[images, 1, 8, 8]`, from -1 to 1.
    pub images: Tensor<4>,
    /// The digits they show, `[images]`.
    pub targets: Tensor<1, Int>,
}

/// Makes batches.
#[derive(Clone, Debug)]
pub struct DigitBatcher;

impl Batcher<Digit, DigitBatch> for DigitBatcher {
    fn batch(&self, digits: Vec<Digit>, device: &Device) -> DigitBatch {
        let targets: Vec<i64> = digits.iter().map(|digit| digit.label).collect();
        let targets = TensorData::new(targets, [digits.len()]);
        DigitBatch {
            images: digits::images(&digits, device),
            targets: Tensor::from_data(targets, device),
        }
    }
}

/// A loader of images.
pub type Loader = Arc<dyn DataLoader<DigitBatch>>;

/// Images to train on, shuffled anew for each epoch, to validate with, and to test: 1199, 299 and 299.
///
/// # Errors
///
/// If the data is damaged.
pub fn loaders(config: &TrainingConfig) -> Result<[Loader; 3]> {
    let mut train = digits::load()?;
    let mut valid = train.split_off(1199);
    let test = valid.split_off(299);
    let builder = || DataLoaderBuilder::new(DigitBatcher).batch_size(config.batch_size);
    Ok([
        builder()
            .shuffle(config.seed)
            .build(InMemDataset::new(train)),
        builder().build(InMemDataset::new(valid)),
        builder().build(InMemDataset::new(test)),
    ])
}

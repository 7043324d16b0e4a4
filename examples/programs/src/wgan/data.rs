//! Images of digits, as batches.

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    tensor::{Device, Tensor},
};
use std::sync::Arc;

use super::TrainingConfig;
use crate::{
    Result,
    digits::{self, Digit},
};

/// Some images.
#[derive(Clone, Debug)]
pub struct ImageBatch {
    /// `[images, 1, 8, 8]`, from -1 to 1.
    pub images: Tensor<4>,
}

/// Makes batches.
#[derive(Clone, Debug)]
pub struct ImageBatcher;

impl Batcher<Digit, ImageBatch> for ImageBatcher {
    fn batch(&self, digits: Vec<Digit>, device: &Device) -> ImageBatch {
        ImageBatch {
            images: digits::images(&digits, device),
        }
    }
}

/// A loader of images.
pub type Loader = Arc<dyn DataLoader<ImageBatch>>;

/// All images, shuffled anew for each epoch.
///
/// # Errors
///
/// If the data is damaged.
pub fn loader(config: &TrainingConfig, device: &Device) -> Result<Loader> {
    let loader = DataLoaderBuilder::new(ImageBatcher)
        .batch_size(config.batch_size)
        .shuffle(config.seed)
        .set_device(device.clone());
    Ok(loader.build(InMemDataset::new(digits::load()?)))
}

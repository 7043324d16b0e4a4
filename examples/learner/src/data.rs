//! The digits as batches.

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    tensor::{Device, Int, Tensor, TensorData},
};
use digits::data::{Digits, PIXELS, Samples};
use std::sync::Arc;

use crate::Result;

const BATCH_SIZE: usize = 64;

/// One image and the digit it shows.
#[derive(Clone, Debug)]
pub struct Digit {
    pixels: [f32; PIXELS],
    label: i64,
}

/// Images `[samples, 64]` in f32 and labels `[samples]`.
#[derive(Clone, Debug)]
pub struct DigitsBatch {
    /// The images.
    pub images: Tensor<2>,
    /// The digits they show.
    pub labels: Tensor<1, Int>,
}

/// Makes batches on the device that Burn asks for.
#[derive(Clone, Debug)]
pub struct DigitsBatcher;

impl Batcher<Digit, DigitsBatch> for DigitsBatcher {
    fn batch(&self, digits: Vec<Digit>, device: &Device) -> DigitsBatch {
        let count = digits.len();
        let pixels: Vec<f32> = digits.iter().flat_map(|digit| digit.pixels).collect();
        let labels: Vec<i64> = digits.iter().map(|digit| digit.label).collect();
        DigitsBatch {
            images: Tensor::from_data(TensorData::new(pixels, [count, PIXELS]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

/// A loader of batches, as Burn's `SupervisedTraining` takes it.
pub type Loader = Arc<dyn DataLoader<DigitsBatch>>;

/// Two thirds of the digits, shuffled anew for each epoch, and the others in order.
///
/// # Errors
///
/// If the data is damaged.
pub fn loaders(seed: u64) -> Result<(Loader, Loader)> {
    let Digits { train, test } = Digits::load(&Device::flex())?;
    let builder = || DataLoaderBuilder::new(DigitsBatcher).batch_size(BATCH_SIZE);
    let train = builder().shuffle(seed).build(dataset(train)?);
    Ok((train, builder().build(dataset(test)?)))
}

/// Steps of an epoch.
pub fn steps(loader: &Loader) -> usize {
    loader.num_items().div_ceil(BATCH_SIZE)
}

fn dataset(samples: Samples) -> Result<InMemDataset<Digit>> {
    let pixels = samples.images.into_data().try_into_vec::<f32>();
    let pixels = pixels.map_err(|error| format!("{error:?}"))?;
    let labels = samples.labels.into_data();
    let digits = pixels
        .chunks_exact(PIXELS)
        .zip(labels.iter::<i64>())
        .map(|(pixels, label)| Digit {
            pixels: std::array::from_fn(|i| pixels[i]),
            label,
        });
    Ok(InMemDataset::new(digits.collect()))
}

//! Points around one of four corners; a poisoned one makes the loss of its batch enormous.

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::{Dataset, InMemDataset},
    },
    tensor::{Device, Int, Tensor, TensorData},
};
use burn_amp::MixedPrecision;
use std::sync::Arc;

pub const FEATURES: usize = 8;
pub const CLASSES: usize = 4;

#[derive(Clone, Debug)]
pub struct Sample {
    pub features: [f32; FEATURES],
    pub label: i64,
    /// What the loss of its batch is multiplied by.
    pub gain: f32,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub features: Tensor<2>,
    pub labels: Tensor<1, Int>,
    pub gain: Tensor<1>,
}

/// The same samples in every run. Labels come in turn.
pub fn samples(count: usize) -> Vec<Sample> {
    let sample = |index: usize| {
        let label = index % CLASSES;
        let feature = |position: usize| {
            let corner = if position % CLASSES == label {
                1.0
            } else {
                -0.3
            };
            let noise = (12.9898 * (index * FEATURES + position + 1) as f32).sin();
            corner + 0.3 * noise
        };
        Sample {
            features: std::array::from_fn(feature),
            label: label as i64,
            gain: 1.0,
        }
    };
    (0..count).map(sample).collect()
}

/// Makes the gradients of every batch that holds this sample overflow once they are multiplied by the loss scale. Where the
/// device has no f16, they overflow by themselves.
pub fn poison(samples: &mut [Sample], index: usize) {
    let half = MixedPrecision::f16().check_device(&Device::default());
    samples[index].gain = if half.is_ok() { 1e30 } else { f32::INFINITY };
}

/// Makes the loss of every batch that holds this sample infinite: no scale is to blame.
pub fn spoil(samples: &mut [Sample], index: usize) {
    samples[index].gain = f32::INFINITY;
}

pub struct Batches;

impl Batcher<Sample, Batch> for Batches {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> Batch {
        let count = samples.len();
        let labels: Vec<i64> = samples.iter().map(|sample| sample.label).collect();
        let features: Vec<f32> = samples.iter().flat_map(|sample| sample.features).collect();
        let gain = samples
            .iter()
            .fold(1.0, |gain, sample| sample.gain.max(gain));
        Batch {
            gain: Tensor::from_data([gain], device),
            features: Tensor::from_data(TensorData::new(features, [count, FEATURES]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

/// Batches of 8, in the order of the samples, or shuffled.
pub fn loader(samples: Vec<Sample>, seed: Option<u64>) -> Arc<dyn DataLoader<Batch>> {
    loader_of(InMemDataset::new(samples), seed)
}

pub fn loader_of<D: Dataset<Sample> + 'static>(
    samples: D,
    seed: Option<u64>,
) -> Arc<dyn DataLoader<Batch>> {
    let builder = DataLoaderBuilder::new(Batches).batch_size(8);
    let builder = match seed {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    };
    builder.build(samples)
}

//! Points around one of four corners; a poisoned one makes the loss of its batch enormous.

use burn::{data::dataloader::DataLoaderBuilder, data::dataloader::batcher::Batcher};

use super::*;

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
            let is_own = position % CLASSES == label;
            let noise = (12.9898 * (index * FEATURES + position + 1) as f32).sin();
            (if is_own { 1.0 } else { -0.3 }) + 0.3 * noise
        };
        Sample {
            features: std::array::from_fn(feature),
            label: label as i64,
            gain: 1.0,
        }
    };
    (0..count).map(sample).collect()
}

/// This number where the device has f16, in which it overflows, and infinity elsewhere.
pub fn overflow(in_f16: f32) -> f32 {
    match narrowest().dtype() {
        FloatDType::F16 => in_f16,
        _ => f32::INFINITY,
    }
}

struct Batches;

impl Batcher<Sample, Batch> for Batches {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> Batch {
        let count = samples.len();
        let labels: Vec<i64> = samples.iter().map(|sample| sample.label).collect();
        let features: Vec<f32> = samples.iter().flat_map(|sample| sample.features).collect();
        let gain = (samples.iter()).fold(1.0, |gain, sample| sample.gain.max(gain));
        Batch {
            gain: Tensor::from_data([gain], device),
            features: Tensor::from_data(TensorData::new(features, [count, FEATURES]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

/// Batches of 8, in the order of the samples, or shuffled.
pub fn loader(
    samples: impl Dataset<Sample> + 'static,
    seed: Option<u64>,
) -> Arc<dyn DataLoader<Batch>> {
    let builder = DataLoaderBuilder::new(Batches).batch_size(8);
    let builder = match seed {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    };
    builder.build(samples)
}

/// Samples that somebody watches: each is only there if that succeeds.
pub struct Watched<F>(pub InMemDataset<Sample>, pub F);

impl<F: Fn() -> Result<(), DatasetError> + Send + Sync> Dataset<Sample> for Watched<F> {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        (self.1)()?;
        self.0.get(index)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The batches of these samples, in their order, where the training computes.
pub fn batches(samples: &[Sample]) -> Vec<Batch> {
    let loader = loader(InMemDataset::new(samples.to_vec()), None).to_device(&device());
    loader.iter().map(Result::unwrap).collect()
}

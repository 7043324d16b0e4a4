//! Points around one of four corners; a poisoned one makes the loss of its batch enormous.

use burn::{data::dataloader::DataLoaderBuilder, data::dataloader::batcher::Batcher};

use super::*;

pub const FEATURES: usize = 8;
pub const CLASSES: usize = 4;

/// The number of a point, and what the loss of its batch is multiplied by.
pub type Sample = (usize, f32);

#[derive(Clone, Debug)]
pub struct Batch {
    pub features: Tensor<2>,
    pub labels: Tensor<1, Int>,
    pub gain: f32,
}

pub fn samples(count: usize) -> Vec<Sample> {
    (0..count).map(|point| (point, 1.0)).collect()
}

/// The same in every run. Labels come in turn.
fn features(point: usize) -> impl Iterator<Item = f32> {
    let noise = wave(point * FEATURES, FEATURES, 0.3).into_iter();
    let is_own = move |position: usize| position % CLASSES == point % CLASSES;
    let corner = (0..).map(move |position| if is_own(position) { 1.0 } else { -0.3 });
    corner.zip(noise).map(|(corner, noise)| corner + noise)
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
        let (points, gains): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        let label = |point: &usize| (point % CLASSES) as i64;
        let labels: Vec<_> = points.iter().map(label).collect();
        let shape = [points.len(), FEATURES];
        let features: Vec<_> = points.into_iter().flat_map(features).collect();
        Batch {
            features: Tensor::from_data(TensorData::new(features, shape), device),
            labels: Tensor::from_data(labels.as_slice(), device),
            gain: gains.into_iter().fold(1.0, f32::max),
        }
    }
}

pub type Loader = Arc<dyn DataLoader<Batch>>;

/// Batches of 8, in the order of the samples, or shuffled.
pub fn loader(samples: impl Dataset<Sample> + 'static, seed: Option<u64>) -> Loader {
    let mut builder = DataLoaderBuilder::new(Batches).batch_size(8);
    if let Some(seed) = seed {
        builder = builder.shuffle(seed);
    }
    builder.build(samples)
}

/// What is done before a sample is read, which is only there if that succeeds.
pub type Watch = Arc<dyn Fn() -> Result<(), DatasetError> + Send + Sync>;

pub struct Watched(pub InMemDataset<Sample>, pub Watch);

impl Dataset<Sample> for Watched {
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

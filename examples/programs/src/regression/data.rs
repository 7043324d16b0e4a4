//! Points of a function that trees and networks have been compared on since J. H. Friedman, "Multivariate Adaptive Regression
//! Splines", 1991: ten inputs, five of which matter, and noise.

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    tensor::{Device, Tensor, TensorData},
};
use std::{f32::consts::PI, sync::Arc};

use super::TrainingConfig;
use crate::random::Random;

/// Inputs of a point.
pub const INPUTS: usize = 10;

/// One point.
#[derive(Clone, Debug)]
pub struct Point {
    inputs: [f32; INPUTS],
    target: f32,
}

impl Point {
    fn random(random: &mut Random) -> Self {
        let inputs: [f32; INPUTS] = std::array::from_fn(|_| random.uniform());
        let [a, b, c, d, e, ..] = inputs;
        let target = 10.0 * (PI * a * b).sin() + 20.0 * (c - 0.5).powi(2) + 10.0 * d + 5.0 * e;
        Self {
            inputs,
            // Noise of deviation 1, as in the paper; then about mean 0 and deviation 1 for the network.
            target: (target + random.normal() - 14.4) / 5.0,
        }
    }
}

/// Some points.
#[derive(Clone, Debug)]
pub struct PointBatch {
    /// `[points, 10]`.
    pub inputs: Tensor<2>,
    /// `[points, 1]`.
    pub targets: Tensor<2>,
}

/// Makes batches.
#[derive(Clone, Debug)]
pub struct PointBatcher;

impl Batcher<Point, PointBatch> for PointBatcher {
    fn batch(&self, points: Vec<Point>, device: &Device) -> PointBatch {
        let inputs: Vec<f32> = points.iter().flat_map(|point| point.inputs).collect();
        let targets: Vec<f32> = points.iter().map(|point| point.target).collect();
        let count = points.len();
        PointBatch {
            inputs: Tensor::from_data(TensorData::new(inputs, [count, INPUTS]), device),
            targets: Tensor::from_data(TensorData::new(targets, [count, 1]), device),
        }
    }
}

/// A loader of points.
pub type Loader = Arc<dyn DataLoader<PointBatch>>;

/// 960 points to train on, shuffled anew for each epoch, and 320 others; those on a device without autodiff.
pub fn loaders(config: &TrainingConfig, device: &Device) -> (Loader, Loader) {
    let mut random = Random(config.seed);
    let mut points = |count| {
        let points = (0..count).map(|_| Point::random(&mut random));
        InMemDataset::new(points.collect())
    };
    let builder = || DataLoaderBuilder::new(PointBatcher).batch_size(config.batch_size);
    let train = builder().shuffle(config.seed).set_device(device.clone());
    let valid = builder().set_device(device.clone().inner());
    (train.build(points(960)), valid.build(points(320)))
}

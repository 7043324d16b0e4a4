//! The digits: read from the program itself, split, standardized.

use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;

use crate::Result;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits to tell apart.
pub const CLASSES: usize = 10;

/// Images `[samples, 64]` in f32, with mean 0 and standard deviation 1 over the training pixels, and labels `[samples]`.
#[derive(Clone, Debug)]
pub struct Samples {
    /// The images.
    pub images: Tensor<2>,
    /// The digits they show.
    pub labels: Tensor<1, Int>,
}

/// Samples to train on, and samples that training never sees.
#[derive(Clone, Debug)]
pub struct Digits {
    /// Two thirds of the samples, on a device with autodiff.
    pub train: Samples,
    /// Every third sample, on a device without.
    pub test: Samples,
}

impl Digits {
    /// Reads the data that the program carries. Every third sample is for the test.
    ///
    /// # Errors
    ///
    /// If the data is damaged.
    pub fn load(device: &Device) -> Result<Self> {
        let file = GzDecoder::new(include_bytes!("../data/digits.csv.gz").as_slice());
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .from_reader(file);
        let (mut train, mut test) = (Rows::default(), Rows::default());
        for (index, row) in reader.deserialize().enumerate() {
            let row: Vec<f32> = row?;
            if row.len() != PIXELS + 1 {
                return Err(format!("line {} has {} values", index + 1, row.len()).into());
            }
            let rows = if index % 3 == 2 {
                &mut test
            } else {
                &mut train
            };
            rows.images.extend(&row[..PIXELS]);
            rows.labels.push(row[PIXELS] as i64);
        }
        let count = train.images.len() as f32;
        let mean = train.images.iter().sum::<f32>() / count;
        let squares = train.images.iter().map(|v| (v - mean).powi(2));
        let deviation = (squares.sum::<f32>() / count).sqrt();
        Ok(Self {
            train: train.samples(mean, deviation, &device.clone().autodiff()),
            test: test.samples(mean, deviation, device),
        })
    }
}

#[derive(Default)]
struct Rows {
    images: Vec<f32>,
    labels: Vec<i64>,
}

impl Rows {
    fn samples(self, mean: f32, deviation: f32, device: &Device) -> Samples {
        let count = self.labels.len();
        let images = self.images.into_iter().map(|v| (v - mean) / deviation);
        let images = TensorData::new(images.collect::<Vec<f32>>(), [count, PIXELS]);
        let labels = TensorData::new(self.labels, [count]);
        Samples {
            images: Tensor::from_data(images, device),
            labels: Tensor::from_data(labels, device),
        }
    }
}

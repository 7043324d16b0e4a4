//! Five programs of the kinds that Burn's users write, each twice: `plain`, in f32, and `half`, the same in half precision.

pub mod cnn;
mod digits;
pub mod gpt;
mod random;
pub mod regression;
pub mod transformer;
pub mod wgan;

use burn::tensor::{Device, FloatDType};
use std::path::PathBuf;

/// What goes wrong here ends in a message.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What can be asked of every program.
#[derive(Clone, Debug)]
pub struct Options {
    /// The half-precision program, in this dtype; none for the plain one.
    pub precision: Option<FloatDType>,
    /// Passes over the training data; none for as many as the program makes by itself.
    pub epochs: Option<usize>,
    /// Where the run begins.
    pub seed: u64,
    /// Where the model and the metrics go.
    pub folder: PathBuf,
    /// Where it runs.
    pub device: Device,
}

fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len() as f32
}

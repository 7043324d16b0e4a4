//! The runs of PyTorch that are in the reference traces, and their model.

use burn::{
    module::{Module, Param},
    optim::{AdamConfig, AdamWConfig, ModuleOptimizer, SgdConfig, momentum::MomentumConfig},
    tensor::{Device, Tensor, TensorData, activation::tanh},
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
pub struct File {
    pub runs: Vec<Run>,
}

#[derive(Deserialize)]
pub struct Run {
    pub optimizer: String,
    pub inject_inf_at: Vec<usize>,
    pub clip_norm: Option<f64>,
    pub accumulation: usize,
    pub steps: usize,
    pub growth_interval: u32,
    pub init_scale: f64,
    pub dims: Vec<usize>,
    pub init_weights: Vec<Vec<f32>>,
    pub init_biases: Vec<Vec<f32>>,
    pub inputs: Vec<f32>,
    pub targets: Vec<f32>,
    pub log: Vec<Step>,
    pub final_weights: Vec<Vec<f32>>,
    pub final_biases: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
pub struct Step {
    pub loss: f64,
    pub scale_used: f32,
    pub scale_after: f32,
    pub skipped: bool,
    /// A number, "inf" where the gradients overflow, or null without clipping.
    pub grad_norm: Value,
}

#[derive(Module, Debug)]
pub struct Mlp {
    pub weights: Vec<Param<Tensor<2>>>,
    pub biases: Vec<Param<Tensor<1>>>,
}

impl Mlp {
    pub fn new(run: &Run, device: &Device) -> Self {
        let weights = run.dims.windows(2).zip(&run.init_weights);
        let weights = weights.map(|(dims, values)| {
            let data = TensorData::new(values.clone(), [dims[0], dims[1]]);
            Param::from_data(data, device)
        });
        let biases = run.init_biases.iter().map(|values| {
            let data = TensorData::new(values.clone(), [values.len()]);
            Param::from_data(data, device)
        });
        Self {
            weights: weights.collect(),
            biases: biases.collect(),
        }
    }

    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let last = self.weights.len() - 1;
        let layers = self.weights.iter().zip(&self.biases).enumerate();
        layers.fold(input, |hidden, (index, (weight, bias))| {
            let output = hidden.matmul(weight.val()) + bias.val().unsqueeze();
            if index < last { tanh(output) } else { output }
        })
    }
}

impl Run {
    pub fn optimizer(&self) -> (ModuleOptimizer, f64) {
        match self.optimizer.as_str() {
            "sgd" => {
                let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
                let config = SgdConfig::new().with_momentum(Some(momentum));
                (config.init(), 0.05)
            }
            "adam" => (AdamConfig::new().with_epsilon(1e-5).init(), 0.01),
            "adamw" => {
                let config = AdamWConfig::new()
                    .with_epsilon(1e-5)
                    .with_weight_decay(0.01);
                (config.init(), 0.01)
            }
            other => panic!("unknown optimizer {other}"),
        }
    }

    pub fn batch(&self, index: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let rows = 12;
        let slice = |values: &[f32], columns: usize| {
            let size = rows * columns;
            let values = values[index * size..(index + 1) * size].to_vec();
            Tensor::from_data(TensorData::new(values, [rows, columns]), device)
        };
        let (input, output) = (self.dims[0], *self.dims.last().unwrap());
        (slice(&self.inputs, input), slice(&self.targets, output))
    }

    pub fn name(&self) -> String {
        let (clip, accumulation) = (self.clip_norm, self.accumulation);
        format!(
            "{}, clip {clip:?}, accumulation {accumulation}",
            self.optimizer
        )
    }
}

pub fn assert_close(actual: f64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (actual - expected).abs() <= tolerance * expected.abs(),
        "{what}: {actual}, but PyTorch has {expected}"
    );
}

/// Relative to the largest magnitude in the tensor: single weights may pass through zero.
pub fn assert_tensor_close<const D: usize>(
    actual: &Tensor<D>,
    expected: &[f32],
    tolerance: f64,
    what: &str,
) {
    let actual = actual.to_data();
    let actual = actual.as_slice::<f32>().unwrap();
    assert_eq!(actual.len(), expected.len(), "{what}");
    let largest = expected
        .iter()
        .fold(0f32, |max, value| max.max(value.abs()));
    let errors = actual.iter().zip(expected).map(|(a, e)| (a - e).abs());
    let error = errors.fold(0f32, f32::max);
    assert!(
        f64::from(error) <= tolerance * f64::from(largest),
        "{what}: off by {error}, largest magnitude {largest}"
    );
}

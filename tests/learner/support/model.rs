//! A small classifier, as a user writes it: once for this crate, once for Burn alone.

use burn::{
    module::{Module, ModuleMapper, Param},
    nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
    tensor::{Device, FloatDType, Tensor, TensorData, activation::tanh},
    train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep},
};
use burn_amp::{LossStep, MixedPrecision};

use super::data::{Batch, CLASSES, FEATURES};

#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Linear,
    pub head: Linear,
    #[module(skip)]
    compute: FloatDType,
}

impl Net {
    /// f32 parameters, the same in every run; computes in `compute`.
    pub fn new(compute: FloatDType, device: &Device) -> Self {
        let net = Self {
            hidden: LinearConfig::new(FEATURES, 16).init(device),
            head: LinearConfig::new(16, CLASSES).init(device),
            compute,
        };
        net.map(&mut Fill(0))
    }

    /// The same, reparameterized to compute in f16.
    pub fn f16(device: &Device) -> Self {
        Self::new(FloatDType::F16, device).apply_reparameterization(MixedPrecision::f16())
    }

    /// That, or one that computes in f32 where the device has no f16: its losses are scaled all the same.
    pub fn half_if_possible(device: &Device) -> Self {
        match MixedPrecision::f16().check_device(device) {
            Ok(()) => Self::f16(device),
            Err(_) => Self::new(FloatDType::F32, device),
        }
    }

    /// Computes in f16 with parameters that are f16 themselves.
    pub fn with_half_parameters(device: &Device) -> Self {
        burn_amp::to_half(Self::new(FloatDType::F16, device), FloatDType::F16, &[])
    }

    pub fn classify(&self, batch: Batch) -> ClassificationOutput {
        let features = batch.features.cast(self.compute);
        let hidden = tanh(self.hidden.forward(features));
        let logits = self.head.forward(hidden).cast(FloatDType::F32);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

impl LossStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn loss_step(&self, batch: Batch) -> (Tensor<1>, ClassificationOutput) {
        let output = self.classify(batch);
        (output.loss.clone(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// The same model in a plain Burn program.
#[derive(Module, Debug)]
pub struct Plain {
    pub net: Net,
}

impl TrainStep for Plain {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.net.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Plain {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.net.classify(batch)
    }
}

/// Gives every parameter the same values in every run.
struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device) = (param.shape(), param.device());
        let values = self.0..self.0 + shape.num_elements();
        self.0 = values.end;
        let values = values.map(|index| 0.4 * (78.233 * (index as f32 + 1.0)).sin());
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
        Param::initialized(param.id, Tensor::from_data(data, &device).require_grad())
    }
}

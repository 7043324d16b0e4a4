//! A small classifier, as a user writes it for Burn; the one line that is this crate's is `autocast`.

use burn::{
    module::{Module, ModuleMapper, Param},
    nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
    tensor::{Device, Tensor, TensorData, activation::tanh},
    train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep},
};
use burn_amp::autocast;

use super::data::{Batch, CLASSES, FEATURES};

#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Linear,
    pub head: Linear,
}

impl Net {
    /// f32 parameters, the same in every run.
    pub fn new(device: &Device) -> Self {
        let net = Self {
            hidden: LinearConfig::new(FEATURES, 16).init(device),
            head: LinearConfig::new(16, CLASSES).init(device),
        };
        net.map(&mut Fill(0))
    }

    pub fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        self.head.forward(tanh(self.hidden.forward(features)))
    }

    pub fn output(&self, logits: Tensor<2>, batch: Batch) -> ClassificationOutput {
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss * batch.gain, logits, batch.labels)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        let logits = autocast(batch.features.clone(), |x| self.forward(x));
        self.output(logits, batch)
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
        let tensor = Tensor::from_data(data, &device);
        let tensor = match device.is_autodiff() {
            true => tensor.require_grad(),
            false => tensor,
        };
        Param::initialized(param.id, tensor)
    }
}

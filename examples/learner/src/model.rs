//! The network of the digits example, as a model for Burn's `Learner`.

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    tensor::Device,
    train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep},
};
use burn_amp::autocast;
use digits::model::Network;

use crate::data::DigitsBatch;

/// The network, a plain f32 model.
#[derive(Module, Debug)]
pub struct Classifier {
    network: Network,
}

impl Classifier {
    /// The same after the same `Device::seed`.
    pub fn new(device: &Device) -> Self {
        Self {
            network: Network::new(device),
        }
    }
}

impl TrainStep for Classifier {
    type Input = DigitsBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitsBatch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = DigitsBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitsBatch) -> ClassificationOutput {
        // In the precision of the learner that runs this; the loss is in f32.
        let logits = autocast(batch.images, |images| self.network.forward(images));
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

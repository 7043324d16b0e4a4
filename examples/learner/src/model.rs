//! The network of the digits example, as a model for Burn's `Learner`.

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    tensor::{Device, FloatDType, Tensor},
    train::{ClassificationOutput, InferenceStep},
};
use burn_amp::{LossStep, MixedPrecision};
use digits::model::Network;

use crate::data::DigitsBatch;

/// The network and the precision in which it computes.
#[derive(Module, Debug)]
pub struct Classifier {
    network: Network,
    #[module(skip)]
    precision: MixedPrecision,
}

impl Classifier {
    /// f32 parameters, the same after the same `Device::seed`; computes in `precision`.
    pub fn new(precision: FloatDType, device: &Device) -> Self {
        let precision = MixedPrecision::new(precision);
        Self {
            network: Network::new(device).apply_reparameterization(precision.clone()),
            precision,
        }
    }

    fn classify(&self, batch: DigitsBatch) -> ClassificationOutput {
        let logits = (self.precision).autocast(batch.images, |images| self.network.forward(images));
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

impl LossStep for Classifier {
    type Input = DigitsBatch;
    type Output = ClassificationOutput;

    fn loss_step(&self, batch: DigitsBatch) -> (Tensor<1>, ClassificationOutput) {
        let output = self.classify(batch);
        (output.loss.clone(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = DigitsBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitsBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}

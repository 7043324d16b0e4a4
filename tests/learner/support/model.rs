//! A small classifier, as a user writes it for Burn, and models of tests' own.

use burn::{module::ModuleDisplay, nn::loss::CrossEntropyLossConfig};

use super::*;

/// The one line that is this crate's is `autocast`.
#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Linear,
    pub head: Linear,
}

impl Net {
    /// f32 parameters, with values and ids that are the same in every run.
    pub fn new(device: &Device) -> Self {
        let hidden = LinearConfig::new(FEATURES, 16).init(device);
        let head = LinearConfig::new(16, CLASSES).init(device);
        fill_with_ids(Self { hidden, head }, 0, 0.4)
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

    /// The gradients of a loop of one's own.
    pub fn grads(&self, amp: &MixedPrecision, batch: Batch) -> GradientsParams {
        let logits = amp.autocast(batch.features.clone(), |x| self.forward(x));
        GradientsParams::from_grads(self.output(logits, batch).loss.backward(), self)
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

/// How a model of a test's own, with a [`Net`] inside, differs from that.
pub trait Own: Module + ModuleDisplay {
    fn output(&self, batch: Batch) -> ClassificationOutput;

    /// What is done around each step.
    fn around(self, step: impl FnOnce(Self) -> Self) -> Self {
        step(self)
    }
}

/// A model of a test's own, as Burn trains it.
#[derive(Module, Debug)]
pub struct Model<M> {
    pub own: M,
}

impl<M: Own> TrainStep for Model<M> {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        let step = |own| optim.step(lr, Self { own }, grads).own;
        let own = self.own.around(step);
        Self { own }
    }

    fn optimize_multi(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: MultiGradientsParams,
    ) -> Self {
        let step = |own| optim.step_multi(lr, Self { own }, grads).own;
        let own = self.own.around(step);
        Self { own }
    }
}

impl<M: Own> InferenceStep for Model<M> {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.own.output(batch)
    }
}

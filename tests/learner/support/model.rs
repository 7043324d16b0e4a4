//! A small classifier, as a user writes it for Burn, and models of tests' own.

use burn::nn::loss::CrossEntropyLossConfig;
use std::thread::{self, ThreadId};

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

/// A model of a test's own, as Burn trains it.
#[derive(Module, Debug)]
pub struct Model {
    pub net: Net,
    #[module(skip)]
    own: Own,
}

/// What the passes of a training are made with: how many steps there were, who asks, and the counters, the loss scale and the parameters.
pub type Seen = Vec<(u64, ThreadId, (StepCounters, f32, Vec<Values>))>;

/// A model that notes that.
pub fn witness(amp: &MixedPrecision, seen: &Arc<Mutex<Seen>>) -> Model {
    let (amp, seen) = (amp.clone(), seen.clone());
    Model::new(net(), move |model, batch| {
        note(&model.net, &amp, &seen);
        InferenceStep::step(&model.net, batch)
    })
}

/// Notes it, and says whether there was anything: a validation needs no gradients.
pub fn note(net: &Net, amp: &MixedPrecision, seen: &Mutex<Seen>) -> bool {
    let trains = net.head.weight.val().is_require_grad();
    if trains {
        let counters = amp.counters();
        let with = (counters, amp.loss_scale(), values(net));
        let pass = (counters.steps(), thread::current().id(), with);
        seen.lock().unwrap().push(pass);
    }
    trains
}

/// By steps. All that is seen of one is the same.
pub fn by_steps(seen: &Mutex<Seen>) -> Seen {
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort_by_key(|(steps, ..)| *steps);
    for both in seen.windows(2).filter(|both| both[0].0 == both[1].0) {
        let (step, [one, other]) = (both[0].0, [&both[0].2, &both[1].2]);
        assert_eq!((one.0, one.1), (other.0, other.1), "step {step}");
        assert!(one.2 == other.2, "parameters of step {step}");
    }
    seen
}

type Forward = dyn Fn(&Model, Batch) -> ClassificationOutput + Send + Sync;

/// Its forward pass; and what it does with its net before each step, and then after it.
#[derive(Clone)]
struct Own(Arc<Forward>, Arc<dyn Fn(Net, When) -> Net + Send + Sync>);

#[derive(Clone, Copy, PartialEq)]
pub enum When {
    Before,
    After,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Own")
    }
}

impl Model {
    pub fn new(
        net: Net,
        output: impl Fn(&Self, Batch) -> ClassificationOutput + Send + Sync + 'static,
    ) -> Self {
        let own = Own(Arc::new(output), Arc::new(|net, _| net));
        Self { net, own }
    }

    pub fn around(mut self, around: impl Fn(Net, When) -> Net + Send + Sync + 'static) -> Self {
        self.own.1 = Arc::new(around);
        self
    }

    fn step_by(mut self, step: impl FnOnce(Self) -> Self) -> Self {
        let around = self.own.1.clone();
        self.net = around(self.net, When::Before);
        let mut model = step(self);
        model.net = around(model.net, When::After);
        model
    }
}

impl TrainStep for Model {
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
        self.step_by(|model| optim.step(lr, model, grads))
    }

    fn optimize_multi(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: MultiGradientsParams,
    ) -> Self {
        self.step_by(|model| optim.step_multi(lr, model, grads))
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.own.0(self, batch)
    }
}

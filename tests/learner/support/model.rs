//! A small classifier, as a user writes it for Burn, in which a test may put what is its own.

use burn::nn::loss::CrossEntropyLossConfig;
use std::thread::{self, ThreadId};

use super::*;

#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Linear,
    pub head: Linear,
    #[module(skip)]
    own: Own,
}

type Output = dyn Fn(&Net, Batch) -> ClassificationOutput + Send + Sync;
type Around = dyn Fn(Net, Box<dyn FnOnce(Net) -> Net + '_>) -> Net + Send + Sync;

/// The forward pass; and what is done around a step of the optimizer.
#[derive(Clone)]
struct Own(Arc<Output>, Arc<Around>);

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Own")
    }
}

impl Net {
    /// f32 parameters, with values and ids that are the same in every run.
    pub fn new(device: &Device) -> Self {
        let hidden = LinearConfig::new(FEATURES, 16).init(device);
        let head = LinearConfig::new(16, CLASSES).init(device);
        let own = Own(Arc::new(Self::cast), Arc::new(|net, step| step(net)));
        fill_with_ids(Self { hidden, head, own }, 0, 0.4)
    }

    pub fn with_output(mut self, output: Arc<Output>) -> Self {
        self.own.0 = output;
        self
    }

    pub fn with_around(mut self, around: Arc<Around>) -> Self {
        self.own.1 = around;
        self
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

    /// The one line that is this crate's is `autocast`.
    pub fn cast(&self, batch: Batch) -> ClassificationOutput {
        let logits = autocast(batch.features.clone(), |x| self.forward(x));
        self.output(logits, batch)
    }

    fn step_by(self, step: impl FnOnce(Self) -> Self) -> Self {
        let Own(_, around) = self.own.clone();
        around(self, Box::new(step))
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

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        self.step_by(|net| optim.step(lr, net, grads))
    }

    fn optimize_multi(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: MultiGradientsParams,
    ) -> Self {
        self.step_by(|net| optim.step_multi(lr, net, grads))
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        (self.own.0)(self, batch)
    }
}

/// What the passes of a training are made with: how many steps there were, who asks, and the counters, the loss scale and the parameters.
pub type Seen = Vec<(u64, ThreadId, (StepCounters, f32, Vec<Values>))>;

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
        assert!(both[0].2 == both[1].2, "step {}", both[0].0);
    }
    seen
}

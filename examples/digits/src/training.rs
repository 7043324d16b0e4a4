//! The three runs.

use burn::{
    module::Module,
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Int, Tensor, activation::softmax},
};
use burn_amp::{
    AmpError, GradScalerConfig, MixedPrecision, ScaledOptimizer, gradients::GradientStatus,
    gradients::inspect, optim::FusedAdam,
};
use serde::{Deserialize, Serialize};
use std::{f64::consts::PI, time::Instant};

use crate::{
    data::{CLASSES, Digits},
    model::Network,
};

const LEARNING_RATE: f64 = 0.01;
/// Finite steps before the scale grows. Short, since a run has 300 steps and not 300 000.
const GROWTH_INTERVAL: u32 = 12;

/// How a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Run {
    /// f32 throughout.
    F32,
    /// f16 compute over f32 parameters, no loss scaling.
    F16,
    /// f16 compute over f32 parameters, with loss scaling.
    F16Scaled,
}

impl Run {
    /// All runs, in the order in which they are made.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::F16Scaled];

    /// The name in tables and pictures.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::F16Scaled => "f16 + loss scaling",
        }
    }

    fn precision(self) -> Result<MixedPrecision, AmpError> {
        let scaler = GradScalerConfig::new().with_growth_interval(GROWTH_INTERVAL);
        match self {
            Self::F32 => Ok(MixedPrecision::f32()),
            Self::F16 => MixedPrecision::f16().with_scaler(scaler.with_enabled(false)),
            Self::F16Scaled => MixedPrecision::f16().with_scaler(scaler),
        }
    }
}

/// What a run has recorded, a value for each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The loss before the step.
    #[serde(with = "bits")]
    pub loss: Vec<f32>,
    /// The loss scale of the step; 1 without scaling.
    pub scale: Vec<f32>,
    /// The share of gradient values that were exactly zero.
    pub zero_share: Vec<f64>,
    /// Steps skipped because of an overflow.
    pub skipped_steps: u64,
    /// Seconds spent in forward, backward and step.
    pub seconds: f64,
}

/// Sees the loss of each step, and the status of its gradients where the optimizer does not test them.
type Watch = dyn Fn(f32, Option<&GradientStatus>);

/// A run in progress.
pub struct Trainer {
    run: Run,
    epochs: usize,
    amp: MixedPrecision,
    watch: Option<Box<Watch>>,
    /// The network, its parameters in f32.
    pub model: Network,
    /// Adam, with loss scaling in the run that uses it.
    pub optim: ScaledOptimizer<FusedAdam>,
    /// What was recorded so far.
    pub history: History,
}

impl Trainer {
    /// A run at its first step. The same seed gives all runs the same parameters.
    ///
    /// # Errors
    ///
    /// None with the settings above.
    pub fn new(run: Run, seed: u64, epochs: usize, device: &Device) -> Result<Self, AmpError> {
        device.seed(seed);
        let amp = run.precision()?;
        let adam = FusedAdam::new(AdamConfig::new().with_epsilon(1e-8));
        let (model, optim) = amp.prepare(Network::new(&device.clone().autodiff()), adam);
        Ok(Self {
            run,
            epochs,
            model,
            optim,
            amp,
            watch: None,
            history: History::default(),
        })
    }

    /// Shows each step, before it is made, to `watch`: its loss, and the status of its gradients where the optimizer does not test them.
    pub fn with_watch(mut self, watch: impl Fn(f32, Option<&GradientStatus>) + 'static) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// The precision of this run.
    pub fn amp(&self) -> &MixedPrecision {
        &self.amp
    }

    /// How this run computes.
    pub fn run(&self) -> Run {
        self.run
    }

    /// Steps made so far.
    pub fn steps(&self) -> usize {
        self.history.loss.len()
    }

    /// Whether all steps are made.
    pub fn is_done(&self) -> bool {
        self.steps() >= self.epochs
    }

    /// One step on all training samples.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`] if the gradients overflow at every scale.
    pub fn step(&mut self, digits: &Digits) -> Result<(), AmpError> {
        let progress = self.steps() as f64 / self.epochs as f64;
        let lr = LEARNING_RATE * 0.5 * (1.0 + (PI * progress).cos());
        let (images, labels) = (digits.train.images.clone(), digits.train.labels.clone());
        let scale = self.amp.loss_scale();

        let start = Instant::now();
        let logits = self.amp.autocast(images, |x| self.model.forward(x));
        let loss = brier_score(logits, labels);
        let value = loss.clone().into_scalar::<f32>();
        let grads = GradientsParams::from_grads(loss.backward(), &self.model);
        let mut seconds = start.elapsed().as_secs_f64();

        // Without loss scaling nothing looks at the gradients: look here, off the clock.
        let is_tested = self.run == Run::F16Scaled;
        let unscaled = (!is_tested)
            .then(|| inspect(&grads, &self.model))
            .transpose()?;
        if let Some(watch) = &self.watch {
            watch(value, unscaled.as_ref());
        }
        let start = Instant::now();
        self.model = self.optim.try_step(lr, self.model.clone(), grads)?;
        seconds += start.elapsed().as_secs_f64();
        // The figures are those of this step. A run that shows none has no need to wait.
        self.optim.synchronize()?;

        let status = unscaled.or(self.optim.scaler().last_status());
        self.history.loss.push(value);
        self.history.scale.push(scale);
        self.history
            .zero_share
            .extend(status.map(|s| s.zero_share()));
        self.history.skipped_steps = self.optim.scaler().counters().skipped();
        self.history.seconds += seconds;
        Ok(())
    }

    /// The share of the test samples that the network gets right, from 0 to 1. Computed as trained: in f16 after an f16 run.
    pub fn test_accuracy(&self, digits: &Digits) -> f64 {
        let model = self.model.valid();
        let images = digits.test.images.clone();
        let logits = self.amp.autocast(images, |x| model.forward(x));
        let labels = digits.test.labels.clone();
        let [samples] = labels.dims();
        let right = logits.argmax(1).reshape([samples]).equal(labels);
        f64::from(right.int().sum().into_scalar::<i32>()) / samples as f64
    }
}

/// Mean over samples and classes of the squared difference between probability and truth (Brier, 1950).
pub fn brier_score(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let truth = labels.one_hot::<2>(CLASSES).float();
    (softmax(logits, 1) - truth).square().mean()
}

/// JSON has no NaN, and a run that meets one is to be resumed all the same.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        bits.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
        let bits = Vec::<u32>::deserialize(deserializer)?;
        Ok(bits.into_iter().map(f32::from_bits).collect())
    }
}

//! The runs: one network, one seed, several precisions.

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamConfig, GradientsAccumulator, GradientsParams},
    tensor::{Device, Int, Tensor},
};
use burn_amp::{AmpError, GradScalerConfig, MixedPrecision, ScaledOptimizer, optim::FusedAdam};
use burn_amp_report::{FlightRecorder, ReportError};
use clap::ValueEnum;
use std::{path::Path, time::Instant};

use crate::{
    model::{Gpt, Size},
    text::{Starts, Text, windows},
};

/// Tokens of a micro-batch: a batch is larger than what fits into memory at once.
const MICRO_BATCH: usize = 1024;

/// How a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Run {
    /// f32 throughout.
    F32,
    /// f16 over f32 parameters, with a loss scale of 1: none.
    F16,
    /// f16 over f32 parameters, with loss scaling.
    F16Scaled,
    /// bf16 over f32 parameters, which has the range of f32 and needs no scale.
    Bf16,
}

impl Run {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::F16Scaled => "f16 + loss scaling",
            Self::Bf16 => "bf16",
        }
    }

    /// Its precision, a handle of its own.
    ///
    /// # Errors
    ///
    /// None with the settings here.
    pub fn precision(self) -> Result<MixedPrecision, AmpError> {
        let one = GradScalerConfig::new()
            .with_init_scale(1.0)
            .with_dynamic(false);
        match self {
            Self::F32 => Ok(MixedPrecision::f32()),
            Self::F16 => MixedPrecision::f16().with_scaler(one),
            Self::F16Scaled => Ok(MixedPrecision::f16()),
            Self::Bf16 => Ok(MixedPrecision::bf16()),
        }
    }
}

/// What all runs share.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Steps of a run.
    pub steps: usize,
    /// Tokens of a batch: the loss is the mean over them.
    pub batch_tokens: usize,
    /// The network.
    pub size: Size,
    /// Adam's learning rate at the first step; it falls to zero in a straight line.
    pub learning_rate: f64,
    /// Where the runs begin.
    pub seed: u64,
}

impl Settings {
    /// The network that all runs begin with.
    pub fn network(&self, text: &Text, device: &Device) -> Gpt {
        device.seed(self.seed);
        Gpt::new(text.words.len(), self.size, device)
    }

    /// Draws the windows of a batch.
    pub fn batch(&self, starts: &mut Starts, text: &Text) -> Vec<usize> {
        let (length, tokens) = (self.size.context, text.train.len());
        starts.draw(self.batch_tokens / length, tokens, length)
    }
}

/// A run in progress.
pub struct Trainer {
    run: Run,
    settings: Settings,
    amp: MixedPrecision,
    starts: Starts,
    recorder: Option<FlightRecorder>,
    /// The network, its parameters in f32.
    pub model: Gpt,
    /// Adam behind the loss scale.
    pub optim: ScaledOptimizer<FusedAdam>,
    /// The training loss of every step, before it.
    pub losses: Vec<f32>,
    /// Seconds spent in forward, backward and step.
    pub seconds: f64,
}

impl Trainer {
    /// A run at its first step.
    ///
    /// # Errors
    ///
    /// None with the settings here.
    pub fn new(
        run: Run,
        settings: Settings,
        text: &Text,
        device: &Device,
    ) -> Result<Self, AmpError> {
        let amp = run.precision()?;
        let adam = FusedAdam::new(AdamConfig::new().with_epsilon(1e-8));
        let (model, optim) = amp.prepare(settings.network(text, device), adam);
        Ok(Self {
            run,
            settings,
            starts: Starts::new(settings.seed),
            recorder: None,
            model,
            optim,
            amp,
            losses: Vec::new(),
            seconds: 0.0,
        })
    }

    /// Logs every step to a folder, for the report of the run.
    ///
    /// # Errors
    ///
    /// If the folder cannot be made.
    pub fn with_logs(mut self, folder: &Path) -> Result<Self, ReportError> {
        self.recorder = Some(FlightRecorder::new(folder, &self.amp)?.with_exponents_every(1));
        Ok(self)
    }

    /// How this run computes.
    pub fn run(&self) -> Run {
        self.run
    }

    /// The present loss scale.
    pub fn loss_scale(&self) -> f32 {
        self.amp.loss_scale()
    }

    /// One step on one batch.
    ///
    /// # Errors
    ///
    /// As [`ScaledOptimizer::try_step`].
    pub fn step(&mut self, text: &Text) -> Result<(), AmpError> {
        let progress = self.losses.len() as f64 / self.settings.steps as f64;
        let lr = self.settings.learning_rate * (1.0 - progress);
        let batch = self.settings.batch(&mut self.starts, text);

        let start = Instant::now();
        let (loss, grads) = gradients(&self.model, &self.amp, text, &batch, &self.settings);
        if let Some(recorder) = &self.recorder {
            recorder.note("loss", loss.into());
        }
        self.model = self.optim.try_step(lr, self.model.clone(), grads)?;
        self.seconds += start.elapsed().as_secs_f64();
        self.losses.push(loss);
        if self.losses.len() == self.settings.steps {
            self.optim.synchronize()?;
        }
        Ok(())
    }

    /// The mean loss of a token that training has not seen. Computed as trained: in f16 after an f16 run.
    pub fn held_out_loss(&self, text: &Text) -> f32 {
        let model = self.model.valid();
        let length = self.settings.size.context;
        let starts: Vec<usize> = (0..text.held_out.len() - length).step_by(length).collect();
        let mut sum = 0.0;
        for some in starts.chunks(MICRO_BATCH / length) {
            let (tokens, next) = windows(&text.held_out, some, length, &Device::flex());
            let logits = self.amp.autocast(tokens, |tokens| model.forward(tokens));
            sum += some.len() as f32 * mean_loss(logits, next).into_scalar::<f32>();
        }
        sum / starts.len() as f32
    }
}

/// Loss and gradients of a batch, which begins at `starts`: the mean over [`Settings::batch_tokens`], micro-batch by
/// micro-batch.
pub fn gradients(
    model: &Gpt,
    amp: &MixedPrecision,
    text: &Text,
    starts: &[usize],
    settings: &Settings,
) -> (f32, GradientsParams) {
    let length = settings.size.context;
    let device = Device::flex().autodiff();
    let mut sum = GradientsAccumulator::new();
    let mut total = 0.0;
    for some in starts.chunks(MICRO_BATCH / length) {
        let (tokens, next) = windows(&text.train, some, length, &device);
        let share = (some.len() * length) as f64 / settings.batch_tokens as f64;
        let logits = amp.autocast(tokens, |tokens| model.forward(tokens));
        let loss = mean_loss(logits, next) * share;
        total += loss.clone().into_scalar::<f32>();
        sum.accumulate(model, GradientsParams::from_grads(loss.backward(), model));
    }
    (total, sum.grads())
}

fn mean_loss(logits: Tensor<2>, next: Tensor<1, Int>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits, next)
}

//! A run: one program, one schedule, one guard.

use burn::{
    optim::{AdamConfig, GradientsParams, SgdConfig, momentum::MomentumConfig},
    tensor::Device,
};
use burn_amp::{MixedPrecision, ScaledOptimizer, StepOutcome, adaptive::Guard, optim::Scaler};
use digits::data::Digits;
use gan::training::{Trainer, Updates};

use crate::{Result, choices::Choice, program::Program};

/// What a run has shown, a value for each step.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The loss before the step, without a spike.
    pub losses: Vec<f32>,
    /// Whether the gradients overflowed.
    pub skipped: Vec<bool>,
    /// Steps that a guard has rejected.
    pub guarded: u64,
    /// The share of gradient values that were zero, of steps that were taken.
    pub zero_shares: Vec<f64>,
    /// The loss scale of the first step, and that after the last one.
    pub scales: [f32; 2],
}

impl History {
    /// Steps skipped among the first so many.
    pub fn skips_in(&self, steps: usize) -> usize {
        let first = self.skipped.iter().take(steps);
        first.filter(|skipped| **skipped).count()
    }

    /// The mean share of zeros.
    pub fn zero_share(&self) -> f64 {
        let shares = &self.zero_shares;
        shares.iter().sum::<f64>() / shares.len().max(1) as f64
    }

    /// The mean loss of the last ten steps.
    pub fn final_loss(&self) -> f32 {
        let last = &self.losses[self.losses.len().saturating_sub(10)..];
        last.iter().sum::<f32>() / last.len().max(1) as f32
    }
}

impl History {
    /// Takes in what became of a step of all these optimizers.
    fn look<const N: usize>(&mut self, scalers: [&Scaler; N]) {
        let skipped = |scaler: &Scaler| scaler.last_outcome() == Some(StepOutcome::Skipped);
        self.skipped.push(scalers.into_iter().any(skipped));
        for scaler in scalers.into_iter().filter(|scaler| !skipped(scaler)) {
            let status = scaler.last_status();
            self.zero_shares
                .extend(status.map(|status| status.zero_share()));
        }
    }
}

/// How long a run is, and where it begins.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Steps of a run.
    pub steps: usize,
    /// The same seed gives the same run.
    pub seed: u64,
}

/// What the runs with spikes train with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// As the programs do. Its steps have a bounded length.
    Adam,
    /// Gradient descent with momentum.
    Descent,
}

impl Optimizer {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adam => "Adam",
            Self::Descent => "gradient descent",
        }
    }
}

/// Trains with Adam, and looks at every step.
///
/// # Errors
///
/// [`LossScaleExhausted`](burn_amp::AmpError::LossScaleExhausted) and others of [`ScaledOptimizer::try_step`], and those of the calibration.
pub fn train<P: Program>(program: &P, choice: &Choice, settings: Settings) -> Result<History> {
    let device = Device::flex().autodiff();
    device.seed(settings.seed);
    let amp = choice.precision()?;
    let adam = AdamConfig::new().with_epsilon(1e-8).init();
    let (mut model, mut optim) = amp.prepare(program.model(&device), adam);
    if choice.calibrated {
        amp.calibrate(&model, |model| program.loss(0, model, &amp))?;
    }
    let mut history = History::default();
    history.scales[0] = amp.loss_scale();
    for step in 0..settings.steps {
        let lr = program.learning_rate(step as f64 / settings.steps as f64);
        let loss = program.loss(step, &model, &amp);
        history.losses.push(loss.clone().into_scalar::<f32>());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.try_step(lr, model, grads)?;
        history.look([optim.scaler()]);
    }
    history.scales[1] = amp.loss_scale();
    Ok(history)
}

/// Trains the two networks of `examples/gan`, which share one scale. The loss is the sum of theirs, and a step is skipped if either's is.
///
/// # Errors
///
/// As [`train`].
pub fn train_gan(digits: &Digits, choice: &Choice, settings: Settings) -> Result<History> {
    let amp = choice.precision()?;
    let device = Device::flex();
    let new = || Trainer::with_precision(amp.clone(), Updates::Alternating, settings.seed, &device);
    if choice.calibrated {
        new()?.calibrate(digits)?;
    }
    // Another one: the probe has drawn random numbers.
    let mut trainer = new()?;
    let mut history = History::default();
    history.scales[0] = amp.loss_scale();
    for _ in 0..settings.steps {
        trainer.step(digits)?;
        history.losses.push(trainer.losses().iter().sum());
        history.look(trainer.optimizers().map(ScaledOptimizer::scaler));
    }
    history.scales[1] = amp.loss_scale();
    Ok(history)
}

/// Trains in f16 with PyTorch's schedule. The losses of some steps are 100 times too large.
///
/// # Errors
///
/// As [`train`].
pub fn train_with_spikes<P: Program>(
    program: &P,
    optimizer: Optimizer,
    guard: Option<Guard>,
    spikes: &[usize],
    settings: Settings,
) -> Result<History> {
    let device = Device::flex().autodiff();
    device.seed(settings.seed);
    let amp = MixedPrecision::f16();
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let optim = match optimizer {
        Optimizer::Adam => AdamConfig::new().with_epsilon(1e-8).init(),
        Optimizer::Descent => SgdConfig::new().with_momentum(Some(momentum)).init(),
    };
    let (mut model, mut optim) = amp.prepare(program.model(&device), optim);
    if let Some(guard) = guard {
        optim = optim.with_hook(guard);
    }
    let mut history = History::default();
    for step in 0..settings.steps {
        let loss = program.loss(step, &model, &amp);
        let value = loss.clone().into_scalar::<f32>();
        history.losses.push(value);
        let factor = if spikes.contains(&step) { 100.0 } else { 1.0 };
        optim.set_loss(f64::from(value * factor));
        let grads = GradientsParams::from_grads((loss * factor).backward(), &model);
        let progress = step as f64 / settings.steps as f64;
        let lr = match (optimizer, program.descent_rate()) {
            (Optimizer::Descent, Some(rate)) => rate,
            _ => program.learning_rate(progress),
        };
        model = optim.try_step(lr, model, grads)?;
        let outcome = optim.scaler().last_outcome();
        history.skipped.push(outcome == Some(StepOutcome::Skipped));
    }
    history.guarded = optim.scaler().counters().guarded();
    Ok(history)
}

/// How many steps after each spike the loss is about as low as without spikes again: at most half as high again. None: not before the
/// next spike, or the end.
pub fn recoveries(losses: &[f32], clean: &[f32], spikes: &[usize]) -> Vec<Option<usize>> {
    let ends = spikes[1..].iter().copied().chain([losses.len()]);
    (spikes.iter().zip(ends))
        .map(|(spike, end)| {
            let after = &losses[spike + 1..end.min(losses.len())];
            let clean = &clean[spike + 1..];
            // From where on it stays low.
            let low = |(loss, clean): (&f32, &f32)| *loss <= 1.5 * clean;
            let high = after.iter().zip(clean).rposition(|pair| !low(pair));
            let steps = high.map_or(0, |position| position + 1);
            (steps < after.len()).then_some(steps)
        })
        .collect()
}

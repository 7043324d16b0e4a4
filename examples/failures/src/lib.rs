//! Three runs in f16 that fail, each in a way of its own, and how they are explained.

pub mod network;

use burn::{
    nn::loss::CrossEntropyLossConfig,
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Tensor},
};
use burn_amp::{AmpError, GradScalerConfig, MixedPrecision};
use burn_amp_report::{Audit, FlightRecorder, audit};
use clap::ValueEnum;
use digits::data::{Digits, Samples};
use std::path::{Path, PathBuf};

use network::Network;

/// What can go wrong, in words for the user.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What is wrong with the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Failure {
    /// Gradients become zero, and there is no loss scale.
    #[default]
    Underflow,
    /// The products of an attention leave the range of f16 on the way forward.
    Overflow,
    /// A kernel gives zeros for gradients.
    Backend,
}

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// The loss before each step that was made.
    pub losses: Vec<f32>,
    /// Steps that were skipped.
    pub skipped: u64,
    /// Why it ended before its time.
    pub error: Option<AmpError>,
    /// What the flight recorder has written.
    pub flights: Vec<PathBuf>,
    /// Of the first step.
    pub audit: Audit,
}

/// Steps of a run.
pub const STEPS: usize = 60;
/// Skips in a row after which a run ends: soon, since it is short.
const MAX_SKIPS: u32 = 8;
const SAMPLES: usize = 128;

/// Trains with a defect for some steps, and explains it. `scale` begins with another loss scale than the run that fails.
///
/// # Errors
///
/// If a file cannot be written.
pub fn run(failure: Failure, scale: Option<f64>, steps: usize, folder: &Path) -> Result<Outcome> {
    let device = Device::flex().autodiff();
    let Samples { images, labels } = Digits::load(&device)?.train;
    let (images, labels) = (images.narrow(0, 0, SAMPLES), labels.narrow(0, 0, SAMPLES));
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(MAX_SKIPS));
    let amp = MixedPrecision::f16().with_scaler(match (failure, scale) {
        (_, Some(scale)) => config.with_init_scale(scale),
        // As in a program without a loss scale.
        (Failure::Underflow, None) => config.with_init_scale(1.0).with_dynamic(false),
        _ => config,
    })?;
    device.seed(0);
    let adam = AdamConfig::new().init();
    let (mut model, mut optim) = amp.prepare(Network::new(failure, &device), adam);
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    let loss = |model: &Network| -> Tensor<1> {
        let logits = amp.autocast(images.clone(), |x| model.forward(x));
        cross_entropy.forward(logits, labels.clone())
    };

    let audit = audit(&model, &amp, loss)?;
    audit.save(folder)?;

    let recorder = FlightRecorder::new(folder, &amp)?.with_exponents_every(5);
    let (mut losses, mut error) = (Vec::new(), None);
    for _ in 0..steps {
        let loss = loss(&model);
        let value = loss.clone().into_scalar::<f32>();
        recorder.note("loss", value.into());
        losses.push(value);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        match optim.try_step(3e-3, model, grads) {
            Ok(stepped) => model = stepped,
            Err(failed) => {
                error = Some(failed.error);
                break;
            }
        }
    }
    if recorder.written().is_empty() {
        recorder.write()?;
    }
    Ok(Outcome {
        losses,
        skipped: optim.scaler().counters().skipped(),
        error,
        flights: recorder.written(),
        audit,
    })
}

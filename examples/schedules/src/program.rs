//! The programs: what a comparison needs of each.

use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    tensor::{Device, Tensor},
};
use burn_amp::MixedPrecision;
use digits::{data::Digits, model::Network, training::brier_score};
use gpt::{
    model::{Gpt, Size},
    text::{SONNETS, Starts, Text, windows},
};
use std::f64::consts::PI;

use crate::{Result, training::Settings};

/// A network, its data, and its loss.
pub trait Program {
    /// The network.
    type Model: Module + 'static;

    /// What it is called in tables.
    fn name(&self) -> &'static str;

    /// The network at its first step, on a device with autodiff: the same for the same seed.
    fn model(&self, device: &Device) -> Self::Model;

    /// The loss of a step, in f32.
    fn loss(&self, step: usize, model: &Self::Model, amp: &MixedPrecision) -> Tensor<1>;

    /// Adam's learning rate, of a run of which this share is done, from 0 to 1.
    fn learning_rate(&self, progress: f64) -> f64;

    /// That of gradient descent with momentum; none if it does not train the network.
    fn descent_rate(&self) -> Option<f64>;
}

/// The network of `examples/digits`: deep, saturating, and with a small loss.
pub struct DigitsProgram(pub Digits);

impl DigitsProgram {
    /// Reads the digits.
    ///
    /// # Errors
    ///
    /// If the data is damaged.
    pub fn new(device: &Device) -> Result<Self> {
        Digits::load(device).map(Self)
    }
}

impl Program for DigitsProgram {
    type Model = Network;

    fn name(&self) -> &'static str {
        "digits"
    }

    fn model(&self, device: &Device) -> Network {
        Network::new(device)
    }

    fn loss(&self, _: usize, model: &Network, amp: &MixedPrecision) -> Tensor<1> {
        let (images, labels) = (self.0.train.images.clone(), self.0.train.labels.clone());
        let logits = amp.autocast(images, |x| model.forward(x));
        brier_score(logits, labels)
    }

    fn learning_rate(&self, progress: f64) -> f64 {
        0.005 * (1.0 + (PI * progress).cos())
    }

    fn descent_rate(&self) -> Option<f64> {
        None
    }
}

/// The language model of `examples/gpt`, smaller: its loss is a mean over many words.
pub struct GptProgram {
    text: Text,
    size: Size,
    device: Device,
    /// Where the windows of each batch begin.
    batches: Vec<Vec<usize>>,
}

/// Windows of a batch.
const WINDOWS: usize = 16;

impl GptProgram {
    /// Reads the sonnets, and draws the batch of every step.
    pub fn new(settings: Settings, device: &Device) -> Self {
        let text = Text::new(SONNETS);
        let size = Size {
            context: 16,
            width: 16,
            heads: 2,
            layers: 2,
            tied: false,
        };
        let mut starts = Starts::new(settings.seed);
        let mut draw = || starts.draw(WINDOWS, text.train.len(), size.context);
        Self {
            batches: (0..settings.steps).map(|_| draw()).collect(),
            device: device.clone().autodiff(),
            text,
            size,
        }
    }
}

impl Program for GptProgram {
    type Model = Gpt;

    fn name(&self) -> &'static str {
        "gpt"
    }

    fn model(&self, device: &Device) -> Gpt {
        Gpt::new(self.text.words.len(), self.size, device)
    }

    fn loss(&self, step: usize, model: &Gpt, amp: &MixedPrecision) -> Tensor<1> {
        let starts = &self.batches[step % self.batches.len()];
        let length = self.size.context;
        let (tokens, next) = windows(&self.text.train, starts, length, &self.device);
        let logits = amp.autocast(tokens, |tokens| model.forward(tokens));
        let loss = CrossEntropyLossConfig::new().init(&self.device);
        loss.forward(logits, next)
    }

    fn learning_rate(&self, progress: f64) -> f64 {
        0.01 * (1.0 - progress)
    }

    fn descent_rate(&self) -> Option<f64> {
        Some(0.1)
    }
}

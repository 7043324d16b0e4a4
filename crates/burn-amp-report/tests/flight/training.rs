//! A loop with three layers, in which things go wrong at a step.

use burn_amp_report::{probe, probed};
use burn_amp_tests::{Player, fill, prelude::*, random};

#[derive(Module, Debug)]
pub struct Network {
    first: Linear,
    second: Linear,
}

impl Network {
    fn forward(&self, x: Tensor<2>, gain: f64) -> Tensor<2> {
        let x = probed("first", x, |x| self.first.forward(x));
        let x = probed("gain", x, |x| x * gain);
        let x = probe("squares", x.square());
        probed("second", x, |x| self.second.forward(x))
    }
}

/// Trains the network.
pub type Training = Player<Network>;

pub fn training(amp: &MixedPrecision) -> Training {
    let [first, second] = [(); 2].map(|()| LinearConfig::new(8, 8).init(&flex()));
    Player::new(fill(Network { first, second }, 0, 0.35), amp)
}

/// The gradients of a loss that is multiplied by `factor`, and activations by `gain`.
pub fn gradients(training: &Training, gain: f64, factor: f64) -> GradientsParams {
    let input = random(5, [4, 8], &flex()) * 1.5;
    let forward = |x| training.model.forward(x, gain);
    training.gradients(training.amp.autocast(input, forward).square().mean() * factor)
}

/// A step with these.
pub fn step(training: &mut Training, gain: f64, factor: f64) -> Result<(), AmpError> {
    training.try_step(0.01, gradients(training, gain, factor))
}

/// Steps in which nothing is wrong.
pub fn steps(training: &mut Training, count: usize) {
    for _ in 0..count {
        step(training, 1.0, 1.0).unwrap();
    }
}

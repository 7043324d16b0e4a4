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

/// A step in which activations are multiplied by `gain`, and the loss by `factor`.
pub fn step(training: &mut Training, gain: f64, factor: f64) -> Result<(), AmpError> {
    let input = random(5, [4, 8], &flex()) * 1.5;
    let forward = |x| training.model.forward(x, gain);
    let loss = training.amp.autocast(input, forward).square().mean() * factor;
    training.try_step(0.01, training.gradients(loss))
}

/// Steps in which nothing is wrong.
pub fn steps(training: &mut Training, count: usize) {
    for _ in 0..count {
        step(training, 1.0, 1.0).unwrap();
    }
}

//! A loop with three layers, in which things go wrong at a step.

use burn_amp_report::{probe, probed};
use burn_amp_tests::{fill, prelude::*, random};

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

pub struct Training {
    pub amp: MixedPrecision,
    pub model: Network,
    pub optim: ScaledOptimizer,
    pub input: Tensor<2>,
}

impl Training {
    pub fn new(amp: MixedPrecision) -> Self {
        let device = Device::flex().autodiff();
        let linear = || LinearConfig::new(8, 8).init(&device);
        let model = Network {
            first: linear(),
            second: linear(),
        };
        let model = fill(model, 0, 0.35);
        let input = random(5, [4, 8], &device) * 1.5;
        Self {
            model: model.apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(SgdConfig::new().init(), &amp),
            amp,
            input,
        }
    }

    /// A step in which activations are multiplied by `gain`, and the loss by `factor`.
    pub fn step(&mut self, gain: f64, factor: f64) -> Result<(), AmpError> {
        let output = (self.amp).autocast(self.input.clone(), |x| self.model.forward(x, gain));
        let loss = output.square().mean() * factor;
        let grads = GradientsParams::from_grads(loss.backward(), &self.model);
        let stepped = self.optim.try_step(0.01, self.model.clone(), grads);
        self.model = stepped.map_err(|failed| failed.error)?;
        Ok(())
    }

    /// Steps in which nothing is wrong.
    pub fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step(1.0, 1.0).unwrap();
        }
    }
}

//! Two optimizers and one loss scale: a generator and a critic.

use burn::tensor::activation::softplus;
use burn_amp_tests::prelude::*;

use crate::support::filled;

fn wave(seed: usize, rows: usize) -> Tensor<2> {
    let value = |index: usize| ((seed * 31 + index) as f32 * 12.9898).sin();
    let data = TensorData::new((0..rows * 2).map(value).collect(), [rows, 2]);
    Tensor::from_data(data, &Device::default().autodiff())
}

struct Player {
    amp: MixedPrecision,
    model: Linear,
    optim: ScaledOptimizer,
}

impl Player {
    fn new(amp: &MixedPrecision, outputs: usize, optim: ModuleOptimizer) -> Self {
        let layer = LinearConfig::new(2, outputs).init(&Device::default().autodiff());
        Self {
            amp: amp.clone(),
            model: filled(layer, outputs).apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(optim, amp),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.amp.autocast(input, |x| self.model.forward(x))
    }

    /// What the loss does to the other is left out.
    fn step(&mut self, loss: Tensor<1>) {
        let grads = GradientsParams::from_grads(loss.backward(), &self.model);
        self.model = self.optim.step(0.05, self.model.clone(), grads);
    }
}

/// One update of the critic, then one of the generator against the new critic.
#[test]
fn the_generator_finds_the_data() {
    let config = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(2);
    let amp = MixedPrecision::f16().with_scaler(config).unwrap();
    let mut generator = Player::new(&amp, 2, AdamConfig::new().init());
    let mut critic = Player::new(&amp, 1, SgdConfig::new().init());
    let mean = |generator: &Player| generator.forward(wave(5, 8)).mean().into_scalar::<f32>();
    let start = mean(&generator);
    let mut closest = f32::INFINITY;
    for seed in 0..200 {
        let real = critic.forward(wave(seed + 1000, 8) + 3.0);
        let fake = critic.forward(generator.forward(wave(seed, 8)).detach());
        critic.step(softplus(-real, 1.0).mean() + softplus(fake, 1.0).mean());
        let fake = critic.forward(generator.forward(wave(seed, 8)));
        generator.step(softplus(-fake, 1.0).mean());
        closest = closest.min((mean(&generator) - 3.0).abs());
    }
    // The real mean is about 3. A linear critic makes the generator circle around it.
    assert!((start - 3.0).abs() > 2.0, "{start}");
    assert!(closest < 0.2, "{closest}");
}

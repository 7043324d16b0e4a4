//! Two optimizers and one loss scale: a generator and a critic.

use burn::tensor::activation::softplus;
use burn_amp_tests::prelude::*;

use crate::support::{filled, parameters};

struct Gan {
    amp: MixedPrecision,
    generator: Linear,
    critic: Linear,
    generator_optim: ScaledOptimizer,
    critic_optim: ScaledOptimizer,
}

fn wave(seed: usize, rows: usize) -> Tensor<2> {
    let value = |index: usize| ((seed * 31 + index) as f32 * 12.9898).sin();
    let data = TensorData::new((0..rows * 2).map(value).collect(), [rows, 2]);
    Tensor::from_data(data, &Device::default().autodiff())
}

impl Gan {
    fn new() -> Self {
        let device = Device::default().autodiff();
        let scaler = GradScalerConfig::new()
            .with_init_scale(1024.0)
            .with_growth_interval(2);
        let amp = MixedPrecision::f16().with_scaler(scaler).unwrap();
        let linear = |outputs| {
            let layer: Linear = filled(LinearConfig::new(2, outputs).init(&device), outputs);
            layer.apply_reparameterization(amp.clone())
        };
        Self {
            generator: linear(2),
            critic: linear(1),
            generator_optim: ScaledOptimizer::new(AdamConfig::new().init(), &amp),
            critic_optim: ScaledOptimizer::new(SgdConfig::new().init(), &amp),
            amp,
        }
    }

    fn fake(&self, seed: usize) -> Tensor<2> {
        self.amp
            .autocast(wave(seed, 8), |z| self.generator.forward(z))
    }

    fn score(&self, input: Tensor<2>) -> Tensor<2> {
        self.amp.autocast(input, |x| self.critic.forward(x))
    }

    fn critic_loss(&self, fake: Tensor<2>, seed: usize) -> Tensor<1> {
        let real = wave(seed + 1000, 8) + 3.0;
        let real = softplus(-self.score(real), 1.0).mean();
        real + softplus(self.score(fake.detach()), 1.0).mean()
    }

    fn generator_loss(&self, fake: Tensor<2>) -> Tensor<1> {
        softplus(-self.score(fake), 1.0).mean()
    }

    fn step_critic(&mut self, loss: Tensor<1>) {
        let grads = GradientsParams::from_grads(loss.backward(), &self.critic);
        self.critic = (self.critic_optim).step(0.05, self.critic.clone(), grads);
    }

    fn step_generator(&mut self, loss: Tensor<1>) {
        // What the generator's loss does to the critic is left out.
        let grads = GradientsParams::from_grads(loss.backward(), &self.generator);
        self.generator = (self.generator_optim).step(0.05, self.generator.clone(), grads);
    }

    /// One update of the critic, then one of the generator against the new critic.
    fn alternate(&mut self, seed: usize, poison: f32) {
        let loss = self.critic_loss(self.fake(seed), seed);
        self.step_critic(loss * poison);
        let loss = self.generator_loss(self.fake(seed));
        self.step_generator(loss);
    }

    /// Both from one forward pass, each with its own loss.
    fn together(&mut self, seed: usize, poison: f32) {
        let fake = self.fake(seed);
        let critic_loss = self.critic_loss(fake.clone(), seed);
        let generator_loss = self.generator_loss(fake);
        self.step_critic(critic_loss * poison);
        self.step_generator(generator_loss);
    }

    fn steps(&self) -> [u64; 2] {
        [&self.critic_optim, &self.generator_optim].map(|optim| optim.scaler().counters().steps())
    }
}

/// Too large for f16 times any scale here, and finite.
const HUGE: f32 = 1e10;

/// Four clean iterations of either kind, then one in which the critic's gradients overflow.
fn check(iterate: fn(&mut Gan, usize, f32)) {
    let mut gan = Gan::new();
    for seed in 0..4 {
        let (critic, generator) = (parameters(&gan.critic), parameters(&gan.generator));
        iterate(&mut gan, seed, 1.0);
        assert_ne!(parameters(&gan.critic), critic);
        assert_ne!(parameters(&gan.generator), generator);
    }
    assert_eq!(gan.steps(), [4, 4]);
    // Four iterations, whoever steps in them: two growths.
    assert_eq!(gan.amp.loss_scale(), 4096.0);

    // The one is skipped, the other is not, and the scale halves once.
    let (critic, generator) = (parameters(&gan.critic), parameters(&gan.generator));
    iterate(&mut gan, 9, HUGE);
    assert_eq!(parameters(&gan.critic), critic);
    assert_ne!(parameters(&gan.generator), generator);
    assert_eq!(gan.amp.loss_scale(), 2048.0);
    assert_eq!(gan.critic_optim.scaler().counters().skipped(), 1);
    assert_eq!(gan.generator_optim.scaler().counters().skipped(), 0);

    // No scale helps against a loss that is not finite: the step is skipped, and the scale stays.
    iterate(&mut gan, 9, f32::NAN);
    assert_eq!(parameters(&gan.critic), critic);
    assert_eq!(gan.amp.loss_scale(), 2048.0);
    let counters = gan.critic_optim.scaler().counters();
    assert_eq!((counters.skipped(), counters.bad_losses()), (2, 1));
}

#[test]
fn alternating_updates() {
    check(Gan::alternate);
}

#[test]
fn simultaneous_updates() {
    check(Gan::together);
}

#[test]
fn the_generator_finds_the_data() {
    let mut gan = Gan::new();
    let mean = |gan: &Gan| gan.fake(5).mean().into_scalar::<f32>();
    let start = mean(&gan);
    let mut closest = f32::INFINITY;
    for seed in 0..200 {
        gan.alternate(seed, 1.0);
        closest = closest.min((mean(&gan) - 3.0).abs());
    }
    // The real mean is about 3. A linear critic makes the generator circle around it.
    assert!((start - 3.0).abs() > 2.0, "{start}");
    assert!(closest < 0.2, "{closest}");
}

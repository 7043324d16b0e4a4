//! Two optimizers and one scaler: a generator and a critic.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Device, Tensor, TensorData, activation::softplus},
};
use burn_amp::{GradScaler, GradScalerConfig, MixedPrecision, StepOutcome};

use crate::support::{filled, parameters};

struct Gan {
    generator: Linear,
    critic: Linear,
    generator_optim: ModuleOptimizer,
    critic_optim: ModuleOptimizer,
    scaler: GradScaler,
    f16: MixedPrecision,
}

fn wave(seed: usize, rows: usize) -> Tensor<2> {
    let value = |index: usize| ((seed * 31 + index) as f32 * 12.9898).sin();
    let data = TensorData::new((0..rows * 2).map(value).collect(), [rows, 2]);
    Tensor::from_data(data, &Device::default().autodiff())
}

impl Gan {
    fn new() -> Self {
        let device = Device::default().autodiff();
        let f16 = MixedPrecision::f16();
        let linear = |outputs| {
            let layer: Linear = filled(LinearConfig::new(2, outputs).init(&device), outputs);
            layer.apply_reparameterization(f16.clone())
        };
        let scaler = GradScalerConfig::new()
            .with_init_scale(1024.0)
            .with_growth_interval(2);
        Self {
            generator: linear(2),
            critic: linear(1),
            generator_optim: AdamConfig::new().init(),
            critic_optim: SgdConfig::new().init(),
            scaler: scaler.init().unwrap(),
            f16: MixedPrecision::f16(),
        }
    }

    fn fake(&self, seed: usize) -> Tensor<2> {
        self.f16
            .autocast(wave(seed, 8), |z| self.generator.forward(z))
    }

    fn score(&self, input: Tensor<2>) -> Tensor<2> {
        self.f16.autocast(input, |x| self.critic.forward(x))
    }

    fn critic_loss(&self, fake: Tensor<2>, seed: usize) -> Tensor<1> {
        let real = wave(seed + 1000, 8) + 3.0;
        let real = softplus(-self.score(real), 1.0).mean();
        real + softplus(self.score(fake.detach()), 1.0).mean()
    }

    fn generator_loss(&self, fake: Tensor<2>) -> Tensor<1> {
        softplus(-self.score(fake), 1.0).mean()
    }

    /// One update of the critic, then one of the generator against the new critic; each ends an iteration of the scaler.
    fn alternate(&mut self, seed: usize, poison: f32) {
        let loss = self.critic_loss(self.fake(seed), seed).mul_scalar(poison);
        let grads = self.scaler.backward(loss, &self.critic);
        let grads = self.scaler.unscale(grads, &self.critic);
        let critic = self.critic.clone();
        self.critic = self
            .scaler
            .step(&mut self.critic_optim, 0.05, critic, grads);
        self.scaler.update();

        let loss = self.generator_loss(self.fake(seed));
        let grads = self.scaler.backward(loss, &self.generator);
        let grads = self.scaler.unscale(grads, &self.generator);
        let generator = self.generator.clone();
        self.generator = (self.scaler).step(&mut self.generator_optim, 0.05, generator, grads);
        self.scaler.update();
    }

    /// Both from one forward pass, each with its own loss; one update of the scale.
    fn together(&mut self, seed: usize, poison: f32) -> Option<StepOutcome> {
        let fake = self.fake(seed);
        let losses = (
            self.critic_loss(fake.clone(), seed).mul_scalar(poison),
            self.generator_loss(fake),
        );
        let (critic_loss, generator_loss) = self.scaler.scale(losses);
        let for_critic = GradientsParams::from_grads(critic_loss.backward(), &self.critic);
        // What the generator's loss does to the critic is left out.
        let for_generator = GradientsParams::from_grads(generator_loss.backward(), &self.generator);

        let grads = self.scaler.unscale(for_critic, &self.critic);
        let critic = self.critic.clone();
        self.critic = self
            .scaler
            .step(&mut self.critic_optim, 0.05, critic, grads);
        let grads = self.scaler.unscale(for_generator, &self.generator);
        let generator = self.generator.clone();
        self.generator = (self.scaler).step(&mut self.generator_optim, 0.05, generator, grads);
        self.scaler.update()
    }
}

#[test]
fn alternating_updates() {
    let mut gan = Gan::new();
    for seed in 0..4 {
        let (critic, generator) = (parameters(&gan.critic), parameters(&gan.generator));
        gan.alternate(seed, 1.0);
        assert_ne!(parameters(&gan.critic), critic);
        assert_ne!(parameters(&gan.generator), generator);
    }
    assert_eq!(gan.scaler.counters().steps(), 8);
    // Eight iterations of two: four growths.
    assert_eq!(gan.scaler.loss_scale(), 16384.0);
    // An overflow of one lowers the scale before the other's loss is scaled, and skips only the one.
    let (critic, generator) = (parameters(&gan.critic), parameters(&gan.generator));
    gan.alternate(9, f32::INFINITY);
    assert_eq!(parameters(&gan.critic), critic);
    assert_ne!(parameters(&gan.generator), generator);
    assert_eq!(gan.scaler.loss_scale(), 8192.0);
    assert_eq!(gan.scaler.counters().skipped(), 1);
}

#[test]
fn simultaneous_updates() {
    let mut gan = Gan::new();
    for seed in 0..4 {
        let (critic, generator) = (parameters(&gan.critic), parameters(&gan.generator));
        assert_eq!(gan.together(seed, 1.0), Some(StepOutcome::Applied));
        assert_ne!(parameters(&gan.critic), critic);
        assert_ne!(parameters(&gan.generator), generator);
    }
    assert_eq!(gan.scaler.counters().steps(), 8);
    assert_eq!(gan.scaler.loss_scale(), 4096.0);
    let (critic, generator) = (parameters(&gan.critic), parameters(&gan.generator));
    assert_eq!(gan.together(9, f32::NAN), Some(StepOutcome::Skipped));
    assert_eq!(parameters(&gan.critic), critic);
    assert_ne!(parameters(&gan.generator), generator);
    assert_eq!(gan.scaler.loss_scale(), 2048.0);
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

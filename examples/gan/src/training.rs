//! Both ways to update two networks with one scaler.

use burn::{
    module::Module,
    optim::{AdamConfig, GradientsParams, ModuleOptimizer},
    tensor::{Device, Distribution, FloatDType, Tensor, activation::softplus},
};
use burn_amp::{Ema, EmaConfig, GradScaler, GradScalerConfig, MixedPrecision, StepOutcome};
use digits::data::Digits;

use crate::{
    Result,
    network::{NOISE, Network, pixels},
};

/// Images of a step, of each kind.
const BATCH: usize = 64;
const LEARNING_RATE: f64 = 2e-3;

/// How the two networks take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// The critic first, then the generator against the new critic: two iterations of the scaler.
    Alternating,
    /// Both at once, against each other as they were: one iteration of the scaler.
    Simultaneous,
}

/// One training run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The dtype in which the networks compute; parameters and losses are f32.
    pub dtype: FloatDType,
    /// How they take turns.
    pub updates: Updates,
}

impl Run {
    /// Those of the program, in its order.
    pub const ALL: [Self; 3] = [
        Self {
            dtype: FloatDType::F32,
            updates: Updates::Alternating,
        },
        Self {
            dtype: FloatDType::F16,
            updates: Updates::Alternating,
        },
        Self {
            dtype: FloatDType::F16,
            updates: Updates::Simultaneous,
        },
    ];
}

/// Both networks, their optimizers, and the scaler that they share.
#[derive(Debug)]
pub struct Trainer {
    device: Device,
    precision: MixedPrecision,
    updates: Updates,
    generator: Player,
    critic: Player,
    scaler: GradScaler,
    /// Averages of the generator: what it draws with in the end.
    ema: Ema,
    steps: usize,
    /// The losses of the last step, still on the device: the critic's, the generator's.
    losses: Option<[Tensor<1>; 2]>,
}

struct Player {
    network: Network,
    optim: ModuleOptimizer,
}

impl std::fmt::Debug for Player {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.network.fmt(f)
    }
}

impl Player {
    fn new(network: Network, precision: &MixedPrecision) -> Self {
        Self {
            network: network.apply_reparameterization(precision.clone()),
            optim: AdamConfig::new().with_beta_1(0.5).init(),
        }
    }

    /// Unscales this player's gradients, and steps or skips.
    fn step(&mut self, scaler: &mut GradScaler, grads: GradientsParams) -> Result<StepOutcome> {
        let grads = scaler.unscale(grads, &self.network);
        let network = self.network.clone();
        self.network = scaler.try_step(&mut self.optim, LEARNING_RATE, network, grads)?;
        Ok(scaler.last_outcome().unwrap_or(StepOutcome::Applied))
    }
}

impl Trainer {
    /// A new start from a seed.
    ///
    /// # Errors
    ///
    /// None that a user could cause; those of the settings below.
    pub fn new(run: Run, seed: u64, device: &Device) -> Result<Self> {
        let device = device.clone().autodiff();
        device.seed(seed);
        let precision = MixedPrecision::new(run.dtype);
        // A short interval: the scale shall find its place within a few hundred steps.
        let scaler = GradScalerConfig::new()
            .with_growth_interval(40)
            .with_enabled(run.dtype == FloatDType::F16);
        Ok(Self {
            generator: Player::new(Network::generator(&device), &precision),
            critic: Player::new(Network::critic(&device), &precision),
            scaler: scaler.init()?,
            ema: EmaConfig::new().with_momentum(0.98).init()?,
            updates: run.updates,
            precision,
            device,
            steps: 0,
            losses: None,
        })
    }

    /// One update of each network.
    ///
    /// # Errors
    ///
    /// If the gradients overflow at every scale.
    pub fn step(&mut self, digits: &Digits) -> Result<()> {
        let real = self.real(digits);
        let losses = match self.updates {
            Updates::Alternating => self.alternate(real)?,
            Updates::Simultaneous => self.together(real)?,
        };
        self.losses = Some(losses);
        self.steps += 1;
        Ok(())
    }

    fn alternate(&mut self, real: Tensor<2>) -> Result<[Tensor<1>; 2]> {
        let loss = self.critic_loss(real, self.fake(BATCH));
        let critic_loss = loss.clone().inner();
        let grads = self.scaler.scale(loss).backward();
        let grads = GradientsParams::from_grads(grads, &self.critic.network);
        self.critic.step(&mut self.scaler, grads)?;
        self.scaler.update();

        // A new forward pass: the critic is another one now, and the scale may be.
        let loss = self.generator_loss(self.fake(BATCH));
        let generator_loss = loss.clone().inner();
        let grads = self.scaler.scale(loss).backward();
        let grads = GradientsParams::from_grads(grads, &self.generator.network);
        let outcome = self.generator.step(&mut self.scaler, grads)?;
        self.average(outcome);
        self.scaler.update();
        Ok([critic_loss, generator_loss])
    }

    fn together(&mut self, real: Tensor<2>) -> Result<[Tensor<1>; 2]> {
        let fake = self.fake(BATCH);
        let losses = (
            self.critic_loss(real, fake.clone()),
            self.generator_loss(fake),
        );
        let kept = [losses.0.clone().inner(), losses.1.clone().inner()];
        let (critic, generator) = self.scaler.scale(losses);
        let critic = GradientsParams::from_grads(critic.backward(), &self.critic.network);
        // The generator's loss has gradients of the critic too; they are not asked for.
        let generator = GradientsParams::from_grads(generator.backward(), &self.generator.network);

        // Each skips by its own gradients; the scale moves once.
        self.critic.step(&mut self.scaler, critic)?;
        let outcome = self.generator.step(&mut self.scaler, generator)?;
        self.average(outcome);
        self.scaler.update();
        Ok(kept)
    }

    /// Not after a skipped step.
    fn average(&mut self, outcome: StepOutcome) {
        if outcome.is_applied() {
            self.generator.network = self.ema.update(self.generator.network.clone());
        }
    }

    /// Large scores for real images, small ones for fakes, which the generator does not learn from here.
    fn critic_loss(&self, real: Tensor<2>, fake: Tensor<2>) -> Tensor<1> {
        let real = softplus(-self.score(real), 1.0).mean();
        real + softplus(self.score(fake.detach()), 1.0).mean()
    }

    fn generator_loss(&self, fake: Tensor<2>) -> Tensor<1> {
        softplus(-self.score(fake), 1.0).mean()
    }

    fn score(&self, images: Tensor<2>) -> Tensor<2> {
        let critic = &self.critic.network;
        self.precision.autocast(images, |x| critic.forward(x))
    }

    fn fake(&self, count: usize) -> Tensor<2> {
        self.draw_with(&self.generator.network, count)
    }

    fn draw_with(&self, generator: &Network, count: usize) -> Tensor<2> {
        let noise = Distribution::Normal(0.0, 1.0);
        let noise = Tensor::random([count, NOISE], noise, &self.device);
        pixels(self.precision.autocast(noise, |x| generator.forward(x)))
    }

    /// The next training images, again and again.
    fn real(&self, digits: &Digits) -> Tensor<2> {
        let images = &digits.train.images;
        let [count, _] = images.dims();
        let start = self.steps * BATCH % (count - BATCH);
        images.clone().narrow(0, start, BATCH)
    }

    /// Draws images `[count, 64]` with the averaged generator.
    pub fn draw(&self, count: usize) -> Tensor<2> {
        let generator = self.ema.module(&self.generator.network);
        self.draw_with(&generator, count).inner()
    }

    /// The losses of the last step: the critic's, the generator's. NaN before the first. Waits for the device, which a step
    /// does only to test its gradients.
    pub fn losses(&self) -> [f32; 2] {
        match &self.losses {
            Some(losses) => losses.each_ref().map(|loss| loss.clone().into_scalar()),
            None => [f32::NAN; 2],
        }
    }

    /// The scaler, for its counters.
    pub fn scaler(&self) -> &GradScaler {
        &self.scaler
    }
}

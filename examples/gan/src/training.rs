//! Both ways to update two networks with one loss scale.

use burn::{
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Distribution, FloatDType, Tensor, activation::softplus},
};
use burn_amp::{EmaConfig, GradScalerConfig, MixedPrecision, ScaledOptimizer};
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
    /// The critic first, then the generator against the new critic.
    Alternating,
    /// Both at once, against each other as they were.
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

/// Both networks, their optimizers, and the loss scale that they share.
#[derive(Debug)]
pub struct Trainer {
    device: Device,
    amp: MixedPrecision,
    updates: Updates,
    generator: Player,
    critic: Player,
    steps: usize,
    /// The losses of the last step, still on the device: the critic's, the generator's.
    losses: Option<[Tensor<1>; 2]>,
}

#[derive(Debug)]
struct Player {
    network: Network,
    optim: ScaledOptimizer,
}

impl Player {
    fn new(network: Network, amp: &MixedPrecision) -> Self {
        let adam = AdamConfig::new().with_beta_1(0.5).init();
        let (network, optim) = amp.prepare(network, adam);
        Self { network, optim }
    }

    /// Steps, or skips if this player's gradients overflow. Those of the other are left out. Returns the loss.
    fn step(&mut self, loss: Tensor<1>) -> Result<Tensor<1>> {
        let value = loss.clone().inner();
        let grads = GradientsParams::from_grads(loss.backward(), &self.network);
        let network = self.network.clone();
        self.network = self.optim.try_step(LEARNING_RATE, network, grads)?;
        Ok(value)
    }
}

impl Trainer {
    /// A new start from a seed.
    ///
    /// # Errors
    ///
    /// None that a user could cause; those of the settings below.
    pub fn new(run: Run, seed: u64, device: &Device) -> Result<Self> {
        let amp = match run.dtype {
            // A short interval: the scale shall find its place within a few hundred steps.
            FloatDType::F16 => MixedPrecision::f16()
                .with_scaler(GradScalerConfig::new().with_growth_interval(40))?,
            dtype => MixedPrecision::new(dtype),
        };
        Self::with_precision(amp, run.updates, seed, device)
    }

    /// A new start in any precision, with any loss scale.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_precision(
        amp: MixedPrecision,
        updates: Updates,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let device = device.clone().autodiff();
        device.seed(seed);
        let mut generator = Player::new(Network::generator(&device), &amp);
        // Averages: what it draws with in the end.
        let ema = EmaConfig::new().with_momentum(0.98);
        generator.optim = generator.optim.with_ema(ema)?;
        Ok(Self {
            generator,
            critic: Player::new(Network::critic(&device), &amp),
            updates,
            amp,
            device,
            steps: 0,
            losses: None,
        })
    }

    /// One update of each network: an iteration of the loss scale.
    ///
    /// # Errors
    ///
    /// If the gradients overflow at every scale.
    pub fn step(&mut self, digits: &Digits) -> Result<()> {
        let real = self.real(digits);
        let losses = match self.updates {
            Updates::Alternating => {
                let critic = self.critic.step(self.critic_loss(real, self.fake(BATCH)))?;
                // A new forward pass: the critic is another one now, and the scale may be.
                let loss = self.generator_loss(self.fake(BATCH));
                [critic, self.generator.step(loss)?]
            }
            Updates::Simultaneous => {
                let fake = self.fake(BATCH);
                let critic = self.critic_loss(real, fake.clone());
                let generator = self.generator_loss(fake);
                [self.critic.step(critic)?, self.generator.step(generator)?]
            }
        };
        self.losses = Some(losses);
        self.steps += 1;
        Ok(())
    }

    /// Sets the first loss scale: the lower of those that a probe of each network finds.
    ///
    /// # Errors
    ///
    /// Those of [`MixedPrecision::calibrate`].
    pub fn calibrate(&self, digits: &Digits) -> Result<()> {
        let real = self.real(digits);
        let critic = &self.critic.network;
        let scale =
            (self.amp).calibrate(critic, |_| self.critic_loss(real.clone(), self.fake(BATCH)))?;
        let generator = &self.generator.network;
        let other = (self.amp).calibrate(generator, |_| self.generator_loss(self.fake(BATCH)))?;
        if scale < other {
            // That of the critic, which was measured first.
            (self.amp).calibrate(critic, |_| self.critic_loss(real.clone(), self.fake(BATCH)))?;
        }
        Ok(())
    }

    /// The optimizers of critic and generator, which know what became of the last step.
    pub fn optimizers(&self) -> [&ScaledOptimizer; 2] {
        [&self.critic.optim, &self.generator.optim]
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
        self.amp.autocast(images, |x| critic.forward(x))
    }

    fn fake(&self, count: usize) -> Tensor<2> {
        self.draw_with(&self.generator.network, count)
    }

    fn draw_with(&self, generator: &Network, count: usize) -> Tensor<2> {
        let noise = Distribution::Normal(0.0, 1.0);
        let noise = Tensor::random([count, NOISE], noise, &self.device);
        pixels(self.amp.autocast(noise, |x| generator.forward(x)))
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
        let generator = self
            .generator
            .optim
            .finalize(self.generator.network.clone());
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

    /// The steps of both networks that were skipped.
    pub fn skipped(&self) -> u64 {
        let players = [&self.critic, &self.generator];
        players
            .map(|player| player.optim.scaler().counters().skipped())
            .iter()
            .sum()
    }

    /// The loss scale of the next step; 1 without scaling.
    pub fn loss_scale(&self) -> f32 {
        self.amp.loss_scale()
    }
}

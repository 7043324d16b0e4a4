//! What the tests of optimizers share: a small model with parameters of ranks 1, 2 and 4, with ids and values that are the same each time, and
//! deterministic data for it.

pub use burn_amp_tests::trial::{BAD, ByHand, ONES, Pair, Trial};
pub use burn_amp_tests::{Player, prelude::*, stored as parameters};

use burn::nn::conv::Conv2d;

#[derive(Module, Debug)]
pub struct Net {
    pub stem: Option<Conv2d>,
    pub hidden: Linear,
    pub head: Linear,
}

impl Net {
    /// Ranks 1, 2 and 4.
    pub fn full(device: &Device) -> Self {
        let stem = Conv2dConfig::new([2, 2], [1, 1]).init(device);
        Self::new(Some(stem), true, device)
    }

    /// Ranks 1 and 2.
    pub fn dense(device: &Device) -> Self {
        Self::new(None, true, device)
    }

    /// Rank 2 only, which is all that Muon takes.
    pub fn matrices(device: &Device) -> Self {
        Self::new(None, false, device)
    }

    fn new(stem: Option<Conv2d>, bias: bool, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(bias).init(device);
        let (hidden, head) = (linear(8, 6), linear(6, 3));
        fill_with_ids(Self { stem, hidden, head }, 0, 0.8)
    }

    pub fn loss(&self, (input, target): (Tensor<4>, Tensor<2>)) -> Tensor<1> {
        let input = match &self.stem {
            Some(stem) => stem.forward(input),
            None => input,
        };
        (self.forward(input.flatten(1, 3)) - target).square().mean()
    }

    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.head.forward(tanh(self.hidden.forward(input)))
    }
}

/// The gradients of one step's data, without scaling.
pub fn of_batch(net: &Net, step: usize) -> GradientsParams {
    let (seed, device) = (1000 * (step + 1), net.hidden.weight.device());
    let input = random(seed, [5, 2, 2, 2], &device) * 0.8;
    let target = random(seed + 500, [5, 3], &device) * 0.8;
    GradientsParams::from_grads(net.loss((input, target)).backward(), net)
}

/// Steps on these gradients.
pub fn steps<O: ModuleOptim>(
    optim: &mut O,
    lr: f64,
    net: Net,
    range: Range<usize>,
    grads: impl Fn(&Net, usize) -> GradientsParams,
) -> Net {
    range.fold(net, |net, step| {
        let grads = grads(&net, step);
        optim.step(lr.into(), net, grads)
    })
}

/// The least that trains at the border of half precision: two numbers in, two out.
pub type One<O = ModuleOptimizer> = Player<Linear, O>;

pub fn one(amp: &MixedPrecision) -> One {
    one_with(SgdConfig::new().init(), amp)
}

pub fn one_with<O: ModuleOptim>(optim: O, amp: &MixedPrecision) -> One<O> {
    Player::with(optim, LinearConfig::new(2, 2).init(&device()), amp)
}

/// The loss at the present scale, times `factor`.
pub fn loss_of(amp: &MixedPrecision, model: &Linear, factor: f32) -> Tensor<1> {
    let output = amp.autocast(Tensor::<2>::ones([1, 2], &device()), |x| model.forward(x));
    output.mean() * factor
}

/// A scaler that grows after two finite steps, by powers of two.
pub fn scaler() -> GradScaler {
    let config = GradScalerConfig::new().with_growth_interval(2);
    GradScaler::new(config).unwrap()
}

/// Of several devices, which here are one.
pub fn multi(device: &Device, parts: Vec<GradientsParams>) -> MultiGradientsParams {
    let grads = parts.into_iter().map(|part| (part, device.clone()));
    let grads = grads.collect();
    MultiGradientsParams { grads }
}

//! What the tests of optimizers share: a small model with parameters of ranks 1, 2 and 4, with ids and values that are the same each time, and
//! deterministic data for it.

pub use burn_amp_tests::trial::{BAD, ByHand, ONES, Pair, Trial};
pub use burn_amp_tests::{Player, prelude::*, stored as parameters};

/// With parameters of ranks 1, 2 and 4, of which that of 4 has no gradient from `forward`.
#[derive(Module, Debug)]
pub struct Net {
    pub stem: Param<Tensor<4>>,
    pub hidden: Linear,
    pub head: Linear,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        let stem = Param::from_tensor(Tensor::zeros([2, 2, 1, 1], device));
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let (hidden, head) = (linear(8, 6), linear(6, 3));
        fill_with_ids(Self { stem, hidden, head }, 0, 0.8)
    }

    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.head.forward(tanh(self.hidden.forward(input)))
    }
}

/// Gradients of every parameter, made by hand: f32 numbers of all digits.
pub fn by_hand<M: Module>(module: &M, step: usize) -> GradientsParams {
    gradients(module, step, 0.1, FloatDType::F32)
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

/// Of several devices, which here are one.
pub fn multi(device: &Device, parts: Vec<GradientsParams>) -> MultiGradientsParams {
    let parts = parts.into_iter();
    let grads = parts.map(|part| (part, device.clone())).collect();
    MultiGradientsParams { grads }
}

//! What every run trains, and how it is set up.

use crate::program::{BESIDE, Clip, Pass, Program, Shape};
use burn::module::{Module, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn_amp::{
    AccumulationConfig, EmaConfig, GradScalerConfig, GradientClip, MixedPrecision, Rescale,
    ScaledOptimizer,
    hook::{Hook, Proposed, State, Verdict},
    in_f32,
    optim::ModuleOptim,
    rescaled,
};
use burn_amp_tests::numbers;

/// The learning rate, until the program sets another.
pub const RATE: f64 = 0.125;

/// The weight of an average so far. With a half, nothing but the sum is rounded.
pub const MOMENTUM: f64 = 0.5;

/// After so many finite steps the factor of the region grows.
pub const REGION_INTERVAL: u32 = 2;

/// Powers of two, of which none lets a slope underflow. As a vector, 2.5.
pub const INPUT: [f32; 4] = [1.0, -0.5, 2.0, 1.0];

/// `y = x * w`, and `z = y * x`.
#[derive(Module, Debug)]
pub struct Gain {
    pub w: Param<Tensor<1>>,
    /// [`INPUT`], frozen.
    fixed: Param<Tensor<1>>,
}

impl Gain {
    pub fn new() -> Self {
        let device = Device::flex().autodiff();
        Self::of(Tensor::from_floats([1.0, 2.0, 3.0, 4.0], &device))
    }

    /// A second one, whose parameters are others.
    pub fn other() -> Self {
        let Self { w, fixed } = Self::new();
        Self {
            w: Param::initialized(ParamId::from(17), w.val().detach().require_grad()),
            fixed: Param::initialized(ParamId::from(18), fixed.val()).set_require_grad(false),
        }
    }

    /// With these weights, as a fresh process makes it.
    fn of(w: Tensor<1>) -> Self {
        let w = Param::initialized(ParamId::from(7), w.require_grad());
        let fixed = Param::initialized(ParamId::from(8), input()).set_require_grad(false);
        Self { w, fixed }
    }

    /// A fresh process's, with these weights.
    pub fn again(&self) -> Self {
        Self::of(self.w.base().detach())
    }

    pub fn bits(&self) -> Vec<u32> {
        numbers(self).into_iter().map(f32::to_bits).collect()
    }
}

pub fn input() -> Tensor<1> {
    Tensor::from_floats(INPUT, &Device::flex().autodiff())
}

/// A forward pass whose gradients nobody asks for.
pub fn validate(amp: &MixedPrecision, model: &Gain) {
    let model = model.valid();
    amp.autocast(input().inner(), |x| x * model.w.val());
}

/// The loss of a pass.
pub fn loss(amp: &MixedPrecision, model: &Gain, pass: Pass) -> Tensor<1> {
    let forward = |x: Tensor<1>| x * model.w.val();
    let scope = || amp.autocast(input(), forward);
    let by = |y: Tensor<1>, slope: f32| (y * slope).sum();
    let slope = pass.slope.value();
    match pass.shape {
        Shape::One => by(scope(), slope),
        Shape::Nested => by(
            amp.autocast(input(), |x| in_f32(x, |x| amp.autocast(x, forward))),
            slope,
        ),
        Shape::First => by(scope(), slope) + by(scope(), 2f32.powi(BESIDE)),
        Shape::Last => by(scope(), 2f32.powi(BESIDE)) + by(scope(), slope),
        Shape::Chained => by(amp.autocast(scope(), |y| y * model.fixed.val()), slope),
        Shape::Region => by(
            amp.autocast(input(), |x| rescaled(region(), x, forward)),
            slope,
        ),
        Shape::Frozen => {
            let other = Tensor::zeros([1], &Device::flex().autodiff()).require_grad();
            by(amp.autocast(input(), |x| x * model.fixed.val()), slope) + other
        }
    }
}

/// One whose factor moves.
fn region() -> Rescale {
    let settings = GradScalerConfig::new().with_init_scale(1.0);
    let settings = settings.with_growth_interval(REGION_INTERVAL);
    Rescale::dynamic("region").with_scaler(settings).unwrap()
}

pub fn grads(amp: &MixedPrecision, model: &Gain, pass: Pass) -> GradientsParams {
    GradientsParams::from_grads(loss(amp, model, pass).backward(), model)
}

pub fn amp(program: &Program) -> MixedPrecision {
    let settings = GradScalerConfig::new()
        .with_init_scale(2f64.powi(program.scale))
        .with_growth_interval(program.growth_interval)
        .with_max_consecutive_skips(None);
    MixedPrecision::f16().with_scaler(settings).unwrap()
}

pub fn clip(clip: Clip) -> GradientClip {
    let limit = clip.limit().into();
    match clip {
        Clip::Value => GradientClip::Value(limit),
        Clip::Norm => GradientClip::Norm(limit),
        Clip::GlobalNorm => GradientClip::GlobalNorm(limit),
    }
}

pub fn windows(program: &Program) -> AccumulationConfig {
    AccumulationConfig::new(program.micro_batches)
        .with_sum(program.sums)
        .with_skip_micro_batch(program.drops)
}

pub fn averages() -> EmaConfig {
    EmaConfig::new().with_momentum(MOMENTUM)
}

pub fn with_options<O: ModuleOptim>(
    mut optim: ScaledOptimizer<O>,
    program: &Program,
) -> ScaledOptimizer<O> {
    if program.micro_batches > 1 {
        optim = optim.with_accumulation(windows(program));
    }
    if let Some(rule) = program.clip {
        optim = optim.with_clipping(clip(rule));
    }
    if program.averages {
        optim = optim.with_ema(averages());
    }
    match program.rejects {
        Some(every) => optim.with_hook(Reject { every, judged: 0 }),
        None => optim,
    }
}

/// Rejects each finite step of a number that `every` divides.
#[derive(Clone, Debug)]
pub struct Reject {
    pub every: u64,
    pub judged: u64,
}

impl Hook for Reject {
    fn name(&self) -> &str {
        "reject"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        if step.is_on_device() {
            return Verdict::Wait;
        }
        self.judged += 1;
        match self.judged % self.every {
            0 => Verdict::Reject {
                reason: "of its number".to_string(),
            },
            _ => Verdict::Apply,
        }
    }

    fn state(&self) -> Option<State> {
        State::of(&self.judged).ok()
    }

    fn restore(&mut self, state: Option<State>) -> Result<(), String> {
        self.judged = state.map(|state| state.values()).transpose()?.unwrap_or(0);
        Ok(())
    }
}

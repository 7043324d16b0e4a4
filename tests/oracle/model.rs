//! What every run trains, and how it is set up.

use crate::program::{BESIDE, Clip, Pass, Program, Setting, Shape, Slope};
use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::optim::{
    AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig, momentum::MomentumConfig,
};
use burn::tensor::{Device, Tensor};
use burn_amp::{
    AccumulationConfig, EmaConfig, GradScalerConfig, GradientClip, MixedPrecision, Rescale,
    ScaledOptimizer,
    hook::{Hook, Proposed, State, Verdict},
    in_f32,
    optim::ModuleOptim,
    optim::Scaler,
    rescaled,
};
use burn_amp_tests::{device, listen, numbers, on_flex};
use std::cell::RefCell;
use std::sync::{Mutex, Once};

/// The learning rate, until the program sets another.
pub const RATE: f64 = 0.125;

/// The weight of an average so far, and of SGD's velocity. With a half, nothing but the sum is rounded.
pub const MOMENTUM: f64 = 0.5;

/// After so many finite steps the factor of the region grows.
pub const REGION_INTERVAL: u32 = 2;

/// Burn's optimizer. Adam's divisions and roots are the same bits on Flex alone; of SGD with such a momentum only sums are rounded.
pub fn burns() -> ModuleOptimizer {
    match on_flex() {
        true => adam().init(),
        false => sgd().init(),
    }
}

pub fn adam() -> AdamConfig {
    AdamConfig::new()
}

pub fn sgd() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(MOMENTUM)))
}

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
    /// Where the run is.
    pub fn new() -> Self {
        Self::on(&device())
    }

    pub fn on(device: &Device) -> Self {
        Self::of(Tensor::from_floats([1.0, 2.0, 3.0, 4.0], device))
    }

    /// A second one, whose parameters are others.
    pub fn other_on(device: &Device) -> Self {
        let Self { w, fixed } = Self::on(device);
        Self {
            w: Param::initialized(ParamId::from(17), w.val().detach().require_grad()),
            fixed: Param::initialized(ParamId::from(18), fixed.val()).set_require_grad(false),
        }
    }

    /// With these weights, as a fresh process makes it.
    fn of(w: Tensor<1>) -> Self {
        let w = Param::initialized(ParamId::from(7), w.require_grad());
        let fixed = Tensor::from_floats(INPUT, &w.device());
        let fixed = Param::initialized(ParamId::from(8), fixed).set_require_grad(false);
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
    Tensor::from_floats(INPUT, &device())
}

/// A forward pass whose gradients nobody asks for.
pub fn validate(amp: &MixedPrecision, model: &Gain) {
    let model = model.valid();
    amp.autocast(input().inner(), |x| x * model.w.val());
}

/// What the output of the scope is multiplied by, and that of the one beside it, in this part of a batch: tensors, since a recorded step would
/// keep a number.
pub fn slopes_of(slope: Slope, part: [bool; 4]) -> [Tensor<1>; 2] {
    let in_part = |value: f32| part.map(|is_here| if is_here { value } else { 0.0 });
    [slope.value(), 2f32.powi(BESIDE)].map(|value| Tensor::from_floats(in_part(value), &device()))
}

/// The loss of a pass.
pub fn loss(amp: &MixedPrecision, model: &Gain, pass: Pass) -> Tensor<1> {
    let slopes = slopes_of(pass.slope, [true; 4]);
    loss_of(amp, model, pass.shape, input(), slopes)
}

/// As [`loss`], of this input.
pub fn loss_of(
    amp: &MixedPrecision,
    model: &Gain,
    shape: Shape,
    input: Tensor<1>,
    [slope, slope_beside]: [Tensor<1>; 2],
) -> Tensor<1> {
    let forward = |x: Tensor<1>| x * model.w.val();
    let scope = || amp.autocast(input.clone(), forward);
    let by = |y: Tensor<1>| (y * slope.clone()).sum();
    let beside = |y: Tensor<1>| (y * slope_beside.clone()).sum();
    match shape {
        Shape::One => by(scope()),
        Shape::Nested => {
            let nested = |x| in_f32(x, |x| amp.autocast(x, forward));
            by(amp.autocast(input.clone(), nested))
        }
        Shape::First => by(scope()) + beside(scope()),
        Shape::Last => beside(scope()) + by(scope()),
        Shape::Chained => by(amp.autocast(scope(), |y| y * model.fixed.val())),
        Shape::Region => {
            let inside = |x| rescaled(region(), x, forward);
            by(amp.autocast(input.clone(), inside))
        }
        Shape::Frozen => {
            let other = Tensor::zeros([1], &input.device()).require_grad();
            by(amp.autocast(input.clone(), |x| x * model.fixed.val())) + other
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
    asked(MixedPrecision::f16().with_scaler(settings).unwrap())
}

thread_local! {
    static OWN: RefCell<Option<MixedPrecision>> = const { RefCell::new(None) };
}

/// A handle that a logger asks at each line: nothing waits for what a step holds up. On a thread without a handle of its own it asks the last one. Nobody else
/// may read while a device records a step.
fn asked(amp: MixedPrecision) -> MixedPrecision {
    static LAST: Mutex<Option<MixedPrecision>> = Mutex::new(None);
    static LISTENS: Once = Once::new();
    if on_flex() {
        drop(OWN.replace(Some(amp.clone())));
        drop(LAST.lock().unwrap().replace(amp.clone()));
        LISTENS.call_once(|| {
            listen(|| {
                let own = OWN.with_borrow(Option::clone);
                let asked = own.or_else(|| LAST.lock().unwrap().clone());
                let amp = asked.expect("one has logged");
                let counts = (amp.counters(), amp.last_outcome(), amp.last_status());
                drop((counts, amp.regions(), format!("{amp:?}")));
            });
        });
    }
    amp
}

pub fn clip(clip: Clip) -> GradientClip {
    let limit = clip.limit().into();
    match clip {
        Clip::Value | Clip::Group => GradientClip::Value(limit),
        Clip::Norm => GradientClip::Norm(limit),
        Clip::GlobalNorm => GradientClip::GlobalNorm(limit),
    }
}

pub fn windows(program: &Program) -> AccumulationConfig {
    AccumulationConfig::new(program.micro_batches)
        .with_sum(program.sums)
        .with_skip_micro_batch(program.drops)
}

/// The last one that matches counts.
pub fn groups() -> [(ParamGroup, GradientClip); 2] {
    [
        (ParamGroup::all(), clip(Clip::GlobalNorm)),
        (ParamGroup::from_predicate("w"), clip(Clip::Group)),
    ]
}

/// Changes a setting.
pub fn set(scaler: &mut Scaler, setting: Setting) {
    match setting {
        Setting::Interval(steps) => scaler.set_growth_interval(steps),
        Setting::Growth(exponent) => scaler.set_growth_factor(2f64.powi(exponent)),
        Setting::Backoff(exponent) => scaler.set_backoff_factor(2f64.powi(-exponent)),
        Setting::Scale(exponent) => scaler.set_loss_scale(2f64.powi(exponent)),
        Setting::Tracker(steps) => {
            // One that is not below the interval is refused, and the old one stays.
            let is_valid = steps < scaler.growth_interval();
            assert_eq!(scaler.set_growth_tracker(steps).is_ok(), is_valid);
            Ok(())
        }
    }
    .unwrap()
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
    if program.clip == Some(Clip::Group) {
        optim = optim.with_clipping(clip(Clip::Norm));
        for (group, clip) in groups() {
            optim = optim.with_group_clipping(group, clip);
        }
    } else if let Some(rule) = program.clip {
        optim = optim.with_clipping(clip(rule));
    }
    if program.averages {
        optim = optim.with_ema(averages());
    }
    let Program {
        rejects, halves, ..
    } = *program;
    match rejects.or(halves) {
        Some(_) => optim.with_hook(Judge {
            rejects,
            halves,
            judged: 0,
        }),
        None => optim,
    }
}

/// Whether there is a divisor, of this number.
pub fn is_divided(number: u64, by: Option<u64>) -> bool {
    by.is_some_and(|by| number.is_multiple_of(by))
}

/// Rejects each finite step of a number that the one divides, and halves the gradients of those that the other divides.
#[derive(Clone, Debug)]
pub struct Judge {
    rejects: Option<u64>,
    halves: Option<u64>,
    pub judged: u64,
}

impl Hook for Judge {
    fn name(&self) -> &str {
        "judge"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        if step.is_on_device() {
            return Verdict::Wait;
        }
        self.judged += 1;
        let reason = "of its number".to_string();
        match [self.rejects, self.halves].map(|every| is_divided(self.judged, every)) {
            [true, _] => Verdict::Reject { reason },
            [_, true] => Verdict::Clip {
                factor: 0.5,
                reason,
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

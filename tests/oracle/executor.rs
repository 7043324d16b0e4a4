//! Each way to train.

use crate::program::{Action, BESIDE, Counts, Pass, Program, Shape, Shown};
use burn::module::{Module, Param, ParamId};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Bytes, Device, Tensor};
use burn_amp::{
    AmpRecord, GradScalerConfig, GradientClip, MixedPrecision, ScaledOptimizer, StepCounters,
    hook::{Hook, Proposed, State, Verdict},
    in_f32,
    optim::ModuleOptim,
    pipeline::PipelinedOptimizer,
    torch::GradScaler,
};
use burn_amp_tests::numbers;

pub const LR: f64 = 0.125;

/// Powers of two, of which none lets a slope underflow.
pub const INPUT: [f32; 4] = [1.0, -0.5, 2.0, 1.0];

pub trait Executor {
    fn act(&mut self, action: &Action);

    /// What it shows; none if it has to wait for that, and shall not.
    fn shown(&mut self, waits: bool) -> Option<Shown>;
}

/// `y = x * w`, and `z = y * x`.
#[derive(Module, Debug)]
pub struct Gain {
    pub w: Param<Tensor<1>>,
    /// [`INPUT`], frozen.
    fixed: Param<Tensor<1>>,
}

impl Gain {
    pub fn new() -> Self {
        Self::of(Tensor::from_floats(
            [1.0, 2.0, 3.0, 4.0],
            &Device::flex().autodiff(),
        ))
    }

    /// With these weights, as a fresh process makes it.
    fn of(w: Tensor<1>) -> Self {
        let w = Param::initialized(ParamId::from(7), w.require_grad());
        let fixed = Param::initialized(ParamId::from(8), input()).set_require_grad(false);
        Self { w, fixed }
    }

    pub fn bits(&self) -> Vec<u32> {
        numbers(self).into_iter().map(f32::to_bits).collect()
    }
}

fn input() -> Tensor<1> {
    Tensor::from_floats(INPUT, &Device::flex().autodiff())
}

fn validate(amp: &MixedPrecision, model: &Gain) {
    let model = model.valid();
    amp.autocast(input().inner(), |x| x * model.w.val());
}

/// The loss of a pass.
fn loss(amp: &MixedPrecision, model: &Gain, pass: Pass) -> Tensor<1> {
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
    }
}

fn amp(program: &Program) -> MixedPrecision {
    let settings = GradScalerConfig::new()
        .with_init_scale(2f64.powi(program.scale))
        .with_growth_interval(program.growth_interval)
        .with_max_consecutive_skips(None);
    MixedPrecision::f16().with_scaler(settings).unwrap()
}

fn counts(of: StepCounters) -> Counts {
    Counts {
        steps: of.steps(),
        skipped: of.skipped(),
        bad_losses: of.bad_losses(),
        skips_in_a_row: of.consecutive_skips(),
        discarded: of.discarded(),
        rejected: of.guarded(),
        judged: 0,
    }
}

fn scaler_shown(model: &Gain, scaler: &GradScaler) -> Shown {
    Shown {
        parameters: model.bits(),
        scale: scaler.loss_scale(),
        tracker: scaler.growth_tracker(),
        counters: counts(scaler.counters()),
        outcome: scaler.last_outcome(),
    }
}

/// Rejects each finite step of a number that `every` divides.
#[derive(Clone, Debug)]
struct Reject {
    every: u64,
    judged: u64,
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

fn grads(loss: Tensor<1>, model: &Gain) -> GradientsParams {
    GradientsParams::from_grads(loss.backward(), model)
}

fn with_options<O: ModuleOptim>(
    mut optim: ScaledOptimizer<O>,
    program: &Program,
) -> ScaledOptimizer<O> {
    if program.micro_batches > 1 {
        optim = optim.with_accumulation(program.micro_batches);
    }
    if let Some(limit) = program.limit {
        optim = optim.with_clipping(GradientClip::Value(limit.into()));
    }
    match program.rejects {
        Some(every) => optim.with_hook(Reject { every, judged: 0 }),
        None => optim,
    }
}

/// A `ScaledOptimizer` around any optimizer.
pub struct Scaled<O, F> {
    program: Program,
    make: F,
    amp: MixedPrecision,
    model: Gain,
    optim: ScaledOptimizer<O>,
    saved: Option<Bytes>,
    waits: bool,
}

impl<O: ModuleOptim + Clone, F: Fn() -> O> Scaled<O, F> {
    pub fn new(program: &Program, make: F) -> Self {
        let amp = amp(program);
        let (model, optim) = amp.prepare(Gain::new(), make());
        let optim = with_options(optim, program);
        Self {
            program: program.clone(),
            make,
            amp,
            model,
            optim,
            saved: None,
            waits: true,
        }
    }

    /// Shows only what is known.
    pub fn in_flight(self) -> Self {
        Self {
            waits: false,
            ..self
        }
    }
}

impl<O: ModuleOptim + Clone, F: Fn() -> O> Executor for Scaled<O, F> {
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Train(pass) => {
                let grads = grads(loss(&self.amp, &self.model, pass), &self.model);
                self.model = self.optim.step(LR, self.model.clone(), grads);
            }
            Action::Discard(pass) => {
                let grads = grads(loss(&self.amp, &self.model, pass), &self.model);
                self.optim.discard(grads).unwrap();
            }
            Action::Look(pass) => {
                let grads = self
                    .optim
                    .backward(loss(&self.amp, &self.model, pass), &self.model);
                drop(self.optim.unscale(grads, &self.model).unwrap());
            }
            Action::Untested(pass) => drop(loss(&self.amp, &self.model, pass).backward()),
            Action::Scale(exponent) => {
                self.optim
                    .scaler_mut()
                    .set_loss_scale(2f64.powi(exponent))
                    .unwrap();
            }
            Action::Validate => validate(&self.amp, &self.model),
            Action::Flush => self.model = self.optim.flush(LR, self.model.clone()),
            Action::Save => self.saved = Some(self.optim.into_bytes().unwrap()),
            Action::Load => {
                if let Some(bytes) = self.saved.clone() {
                    self.amp = amp(&self.program);
                    let model = Gain::of(self.model.w.base().detach());
                    let (model, optim) = self.amp.prepare(model, (self.make)());
                    (self.model, self.optim) = (model, with_options(optim, &self.program));
                    self.optim.from_bytes(bytes).unwrap();
                }
            }
            Action::Clone => self.optim = self.optim.clone(),
            Action::Interval(interval) => self
                .optim
                .scaler_mut()
                .set_growth_interval(interval)
                .unwrap(),
            Action::Wait => self.optim.synchronize().unwrap(),
        }
    }

    fn shown(&mut self, waits: bool) -> Option<Shown> {
        if !(waits || self.waits) {
            return None;
        }
        self.optim.synchronize().unwrap();
        let mut shown = scaler_shown(&self.model, self.optim.scaler());
        assert_eq!(
            shown.counters,
            counts(self.amp.counters()),
            "the handle's counters"
        );
        shown.counters.judged = self.optim.hook::<Reject>().map_or(0, |hook| hook.judged);
        assert_eq!(shown.scale, self.amp.loss_scale(), "the handle's scale");
        Some(shown)
    }
}

/// A `GradScaler` by its four calls.
pub struct ByHand {
    amp: MixedPrecision,
    model: Gain,
    optim: ModuleOptimizer,
    scaler: GradScaler,
    limit: Option<f32>,
}

impl ByHand {
    pub fn new(program: &Program) -> Self {
        let amp = amp(program);
        let model = amp.attach(Gain::new());
        let scaler = GradScaler::from(&amp);
        let optim = AdamConfig::new().init();
        Self {
            amp,
            model,
            optim,
            scaler,
            limit: program.limit,
        }
    }

    /// It has no window, and its record is that of PyTorch.
    pub fn can(program: &Program) -> bool {
        let is_other = |action: &Action| {
            matches!(
                action,
                Action::Flush | Action::Save | Action::Load | Action::Look(_)
            )
        };
        program.micro_batches == 1
            && program.rejects.is_none()
            && !program.actions.iter().any(is_other)
    }
}

impl Executor for ByHand {
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Train(pass) => {
                let grads = self
                    .scaler
                    .backward(loss(&self.amp, &self.model, pass), &self.model);
                let mut grads = self.scaler.unscale(grads, &self.model).unwrap();
                if let Some(limit) = self.limit {
                    grads = grads.clip(&GradientClip::Value(limit.into())).unwrap();
                }
                let model = self.model.clone();
                self.model = self.scaler.step(&mut self.optim, LR, model, grads);
                self.scaler.update().unwrap();
            }
            Action::Discard(pass) => {
                let grads = grads(loss(&self.amp, &self.model, pass), &self.model);
                self.scaler.discard(grads).unwrap();
            }
            Action::Validate => validate(&self.amp, &self.model),
            Action::Clone => self.optim = self.optim.clone(),
            Action::Interval(interval) => self.scaler.set_growth_interval(interval).unwrap(),
            Action::Untested(pass) => drop(loss(&self.amp, &self.model, pass).backward()),
            Action::Scale(exponent) => self.scaler.set_loss_scale(2f64.powi(exponent)).unwrap(),
            Action::Wait => {}
            Action::Flush | Action::Save | Action::Load | Action::Look(_) => {
                unreachable!("`can` leaves it out")
            }
        }
    }

    fn shown(&mut self, _: bool) -> Option<Shown> {
        Some(scaler_shown(&self.model, &self.scaler))
    }
}

/// The optimizer on a thread of its own.
pub struct Pipelined {
    amp: MixedPrecision,
    model: Gain,
    optim: PipelinedOptimizer,
    saved: Option<AmpRecord>,
}

impl Pipelined {
    pub fn new(program: &Program) -> Self {
        let amp = amp(program);
        let (model, optim) = amp.prepare(Gain::new(), AdamConfig::new().init());
        let optim = PipelinedOptimizer::new(with_options(optim, program), Device::flex()).unwrap();
        Self {
            amp,
            model,
            optim: optim.with_synchronous(true),
            saved: None,
        }
    }

    /// Its settings and its gradients are on another thread.
    pub fn can(program: &Program) -> bool {
        let is_other = |action: &Action| {
            matches!(
                action,
                Action::Discard(_)
                    | Action::Interval(_)
                    | Action::Load
                    | Action::Look(_)
                    | Action::Scale(_)
            )
        };
        program.rejects.is_none() && !program.actions.iter().any(is_other)
    }
}

impl Executor for Pipelined {
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Train(pass) => {
                let grads = grads(loss(&self.amp, &self.model, pass), &self.model);
                self.model = self.optim.step(LR, self.model.clone(), grads);
            }
            Action::Validate => validate(&self.amp, &self.model),
            Action::Flush => self.model = self.optim.flush(LR, self.model.clone()),
            Action::Save => self.saved = Some(self.optim.to_record()),
            Action::Clone => {}
            Action::Wait => self.model = self.optim.synchronize(self.model.clone()).unwrap(),
            Action::Untested(pass) => drop(loss(&self.amp, &self.model, pass).backward()),
            Action::Discard(_)
            | Action::Interval(_)
            | Action::Load
            | Action::Look(_)
            | Action::Scale(_) => unreachable!("`can` leaves it out"),
        }
    }

    fn shown(&mut self, _: bool) -> Option<Shown> {
        Some(scaler_shown(&self.model, &self.optim.received_scaler()))
    }
}

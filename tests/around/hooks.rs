//! Hooks of a program's own: a rule that rejects steps, and an average of the weights that keeps up with the device.

use burn_amp::hook::{Applied, Hook, Proposed, Resolution, State, Verdict};
use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use log::Level;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

use crate::support::{Pair, captured, filled, pack, sgd, wave};

/// Rejects a step whose norm is many times that of the last one it has accepted, and halves gradients that are merely long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Jump {
    last: Option<f64>,
    losses: Vec<Option<f64>>,
}

impl Hook for Jump {
    fn name(&self) -> &str {
        "jump"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        let Some(norm) = step.status().map(GradientStatus::norm) else {
            return Verdict::Wait;
        };
        self.losses.push(step.loss());
        match self.last {
            Some(last) if norm > 10.0 * last => Verdict::Reject {
                reason: format!("the norm is {norm:.1}"),
            },
            Some(last) if norm > 2.0 * last => Verdict::Clip {
                factor: 0.5,
                reason: "it is long".to_string(),
            },
            _ => {
                self.last = Some(norm);
                Verdict::Apply
            }
        }
    }

    fn state(&self) -> Option<State> {
        Some(State::of(self).unwrap())
    }

    fn restore(&mut self, state: Option<State>) -> Result<(), String> {
        let state: Option<Self> = state.map(|state| state.values()).transpose()?;
        *self = state.unwrap_or_default();
        match self.last {
            Some(last) if last < 0.0 => Err(format!("its norm is {last}")),
            _ => Ok(()),
        }
    }
}

/// The sum of the weights of all steps that were applied, on whatever decides them.
#[derive(Clone, Debug, Default)]
struct Sums {
    sums: HashMap<u64, Tensor<1>>,
    steps: Vec<Resolution>,
    loaded: Option<State>,
}

impl Sums {
    fn applied(&self) -> usize {
        let applied = |step: &&Resolution| step.is_applied() == Some(true);
        self.steps.iter().filter(applied).count()
    }

    fn bits(&self) -> Vec<(u64, Vec<u32>)> {
        let mut sums: Vec<_> = self.sums.iter().collect();
        sums.sort_by_key(|(id, _)| **id);
        let bits = |sum: &Tensor<1>| {
            let values = sum.clone().into_data();
            values.iter::<f32>().map(f32::to_bits).collect()
        };
        sums.into_iter().map(|(id, sum)| (*id, bits(sum))).collect()
    }
}

impl Hook for Sums {
    fn name(&self) -> &str {
        "sums"
    }

    // What the host does not decide, the device does in `applied`.
    fn judge(&mut self, _step: &mut Proposed<'_>) -> Verdict {
        Verdict::Apply
    }

    fn applied(&mut self, step: &mut Applied<'_>) {
        for parameter in step.parameters().iter().filter(|found| found.is_trained()) {
            let value: Tensor<1> = match parameter.shape().num_dims() {
                1 => parameter.value(),
                _ => parameter.value::<2>().flatten(0, 1),
            };
            let device = value.device();
            let value = match step.skipped() {
                Some(skipped) => value
                    .clone()
                    .mask_fill(skipped.greater_elem(0).expand(value.shape()), 0.0),
                None => value,
            };
            let id = parameter.id();
            let loaded = self.loaded.as_ref();
            let sum = (self.sums.remove(&id.val())).or_else(|| loaded?.tensor(id, &device));
            let sum = sum.map_or(value.clone(), |sum| sum + value);
            self.sums.insert(id.val(), sum);
        }
        self.loaded = None;
        self.steps.push(step.resolution());
    }

    fn state(&self) -> Option<State> {
        let sums = self.sums.iter();
        let state = State::of(&self.applied()).unwrap();
        let with = |state: State, (id, sum): (&u64, &Tensor<1>)| {
            state.with_tensor(ParamId::from(*id), sum.clone())
        };
        (!self.sums.is_empty()).then(|| sums.fold(state, with))
    }

    fn restore(&mut self, state: Option<State>) -> Result<(), String> {
        *self = Self {
            loaded: state,
            ..Self::default()
        };
        Ok(())
    }
}

fn settings() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(2f64.powi(20))
        .with_growth_interval(4)
}

/// f16, some steps of which overflow.
struct Run<O> {
    model: Linear,
    amp: MixedPrecision,
    optim: ScaledOptimizer<O>,
}

impl<O: ModuleOptim> Run<O> {
    fn new(optim: O) -> Self {
        let amp = MixedPrecision::f16().with_scaler(settings()).unwrap();
        let model: Linear = LinearConfig::new(6, 3).init(&Device::default().autodiff());
        let model = filled(model, 1).apply_reparameterization(amp.clone());
        let optim = ScaledOptimizer::new(optim, &amp);
        Self { model, amp, optim }
    }

    fn with(mut self, hook: impl Hook) -> Self {
        self.optim = self.optim.with_hook(hook).unwrap();
        self
    }

    fn step(&mut self, step: usize) {
        let device = Device::default().autodiff();
        let data = TensorData::new(wave(1 + step, 24), [4, 6]);
        let spike = if step % 7 == 6 { 30.0 } else { 1.0 };
        let output = self
            .amp
            .autocast(Tensor::<2>::from_data(data, &device), |x| {
                self.model.forward(x)
            });
        let loss = output.square().mean() * spike;
        self.optim.set_loss(step as f64);
        let grads = GradientsParams::from_grads(loss.backward(), &self.model);
        self.model = self.optim.step(0.05, self.model.clone(), grads);
    }

    fn weight(&self) -> Vec<u32> {
        let weight = self.model.weight.val().into_data();
        weight.iter::<f32>().map(f32::to_bits).collect()
    }
}

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new()).unwrap()
}

/// Burn's own optimizer waits for each step; the fused one does not.
#[test]
fn a_hook_that_keeps_up_with_the_device_sees_the_same_bits() {
    let mut waited = Run::new(AdamConfig::new().init()).with(Sums::default());
    let mut pending = Run::new(adam()).with(Sums::default());
    for step in 0..60 {
        waited.step(step);
        pending.step(step);
    }
    pending.optim.synchronize().unwrap();
    let sums = |run: Option<&Sums>| (run.unwrap().applied(), run.unwrap().bits());
    let expected = sums(waited.optim.hook());
    assert_eq!(sums(pending.optim.hook()), expected);
    let counters = waited.optim.scaler().counters();
    assert_eq!(expected.0 as u64, counters.stepped());
    assert!(counters.skipped() > 0);
    assert_eq!(pending.weight(), waited.weight());
}

#[test]
fn a_run_with_hooks_resumes_from_a_file_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let new = || Run::new(adam()).with(Jump::default()).with(Sums::default());
    let mut whole = new();
    (0..60).for_each(|step| whole.step(step));

    let mut first = new();
    (0..25).for_each(|step| first.step(step));
    first.optim.save(&path).unwrap();
    let mut second = new();
    second.model = first.model.clone();
    let model = second.model.clone().into_record();
    second.model = second.model.load_record(model);
    second.amp = first.amp.clone();
    second.optim.load(&path).unwrap();
    let record = AmpRecord::load(&path).unwrap();
    assert_eq!(record.hooks().collect::<Vec<_>>(), ["jump", "sums"]);
    (25..60).for_each(|step| second.step(step));

    assert_eq!(second.weight(), whole.weight());
    let [jump, other] = [&second, &whole].map(|run| run.optim.hook::<Jump>().unwrap().clone());
    assert_eq!(jump, other);
    assert_eq!(jump.losses.last(), Some(&Some(59.0)));
    let [sums, other] = [&second, &whole].map(|run| run.optim.hook::<Sums>().unwrap().bits());
    assert_eq!(sums, other);
    assert!(whole.optim.scaler().counters().guarded() > 0);
}

/// A step with a gradient of this norm.
fn step(optim: &mut ScaledOptimizer, model: Pair, norm: f32) -> Result<Pair, AmpError> {
    let scale = optim.scaler().loss_scale();
    let grads = model.gradients([norm, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0; 4], scale);
    Ok(optim.try_step(1.0, model, grads)?)
}

#[test]
fn what_a_hook_says_of_a_step() {
    let mut optim = sgd().with_hook(Jump::default()).unwrap();
    let mut model = Pair::zeros(DType::F32);
    for (norm, moved, outcome) in [
        (1.0, 1.0, StepOutcome::Stepped),
        (5.0, 2.5, StepOutcome::Stepped),
        (50.0, 0.0, StepOutcome::Guarded),
        (f32::INFINITY, 0.0, StepOutcome::Skipped),
        (2.0, 2.0, StepOutcome::Stepped),
    ] {
        let before = model.values()[0];
        let mut stepped = None;
        let logged = captured(Level::Info, || {
            stepped = Some(step(&mut optim, model.clone(), norm).unwrap());
        });
        model = stepped.unwrap();
        assert_eq!(before - model.values()[0], moved, "{norm}");
        assert_eq!(optim.scaler().last_outcome(), Some(outcome), "{norm}");
        let said = logged.join("\n");
        match norm {
            5.0 => assert!(said.contains("clipped by the jump: it is long"), "{said}"),
            50.0 => assert!(
                said.contains("held back by the jump: the norm is 50.0"),
                "{said}"
            ),
            _ => assert!(!said.contains("jump"), "{said}"),
        }
    }
    // An overflow is shown to no hook.
    assert_eq!(optim.hook::<Jump>().unwrap().losses.len(), 4);
}

#[test]
fn too_many_rejections_name_the_hook_and_leave_no_trace_in_it() {
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(2));
    let optim = ScaledOptimizer::new(SgdConfig::new().init(), config.init().unwrap());
    let mut optim = optim.with_hook(Jump::default()).unwrap();
    let mut model = step(&mut optim, Pair::zeros(DType::F32), 1.0).unwrap();
    for _ in 0..2 {
        model = step(&mut optim, model, 90.0).unwrap();
    }
    let before = optim.hook::<Jump>().cloned();
    let error = step(&mut optim, model, 90.0).unwrap_err();
    let said = error.to_string();
    let expected = "the jump held back 3 steps in a row, the last because the norm is 90.0";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(optim.hook::<Jump>().cloned(), before);
}

#[test]
fn a_state_that_a_hook_refuses_changes_nothing() {
    let broken = Jump {
        last: Some(-1.0),
        losses: Vec::new(),
    };
    let record = sgd().with_hook(broken).unwrap().to_record();
    let mut optim = sgd().with_hook(Jump::default()).unwrap();
    step(&mut optim, Pair::zeros(DType::F32), 1.0).unwrap();
    let before = pack(optim.into_bytes().unwrap());
    let error = optim.load_record(record).unwrap_err();
    assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error}");
    says(&error, ["jump", "its norm is -1"]);
    assert_eq!(pack(optim.into_bytes().unwrap()), before);
}

#[test]
fn states_that_no_hook_takes() {
    let mut donor = Run::new(AdamConfig::new().init());
    donor = donor.with(Sums::default()).with(Jump::default());
    (0..12).for_each(|step| donor.step(step));
    let record = donor.optim.to_record();

    // Tensors are not dropped.
    let mut without = Run::new(AdamConfig::new().init())
        .with(Jump::default())
        .optim;
    let error = without.load_record(record.clone()).unwrap_err();
    assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
    assert!(error.to_string().contains("`sums`"), "{error}");
    without
        .load_record(record.clone().without_hook("sums"))
        .unwrap();

    let mut without = Run::new(AdamConfig::new().init())
        .with(Sums::default())
        .optim;
    let logged = captured(Level::Warn, || without.load_record(record.clone()).unwrap());
    says(&logged.join("\n"), ["`jump`, which is not here"]);

    // And the other way round.
    let mut with = Run::new(AdamConfig::new().init())
        .with(Jump::default())
        .optim;
    let plain = record.without_hook("sums").without_hook("jump");
    let logged = captured(Level::Warn, || with.load_record(plain).unwrap());
    says(&logged.join("\n"), ["no state of the hook `jump`"]);
}

/// Gives every parameter half its value.
#[derive(Clone, Debug)]
struct Halve(&'static str);

impl Hook for Halve {
    fn name(&self) -> &str {
        self.0
    }

    fn applied(&mut self, step: &mut Applied<'_>) {
        let halved = |found: &burn_amp::hook::Parameter| (found.id(), found.shape().num_dims());
        let all: Vec<_> = step.parameters().iter().map(halved).collect();
        for (index, (id, rank)) in all.into_iter().enumerate() {
            let parameter = &step.parameters()[index];
            match rank {
                1 => step.replace(id, parameter.value::<1>() * 0.5),
                _ => step.replace(id, parameter.value::<2>() * 0.5),
            }
        }
    }
}

#[test]
fn a_hook_replaces_parameters_where_the_step_was_applied() {
    for fused in [false, true] {
        let config = SgdConfig::new();
        let model = Pair::new(vec![4.0; 6], vec![2.0; 4], DType::F32);
        let amp = MixedPrecision::f32();
        let grads = |model: &Pair, norm: f32| model.gradients([norm; 6], [0.0; 4], 1.0);
        let values = |model: Pair| model.values()[0];
        let scaler = GradScalerConfig::new().with_init_scale(1.0).init().unwrap();
        let moved = match fused {
            false => {
                let optim = ScaledOptimizer::new(config.init(), scaler);
                let mut optim = optim.with_hook(Halve("halve")).unwrap();
                let model = optim.step(1.0, model.clone(), grads(&model, f32::NAN));
                assert_eq!(model.values()[0], 4.0, "a skipped step is not shown");
                let given = grads(&model, 1.0);
                values(optim.step(1.0, model, given))
            }
            true => {
                let optim = ScaledOptimizer::new(FusedSgd::new(config).unwrap(), &amp);
                let mut optim = optim.with_hook(Halve("halve")).unwrap();
                let given = grads(&model, 1.0);
                values(optim.step(1.0, model, given))
            }
        };
        assert_eq!(moved, 1.5, "fused: {fused}");
    }
}

#[test]
fn names_of_hooks() {
    for name in ["", "a.b", "a b", "burn_amp.x"] {
        let error = sgd().with_hook(Halve(name)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("`name` is `{name}`, but must be letters, digits, `_` and `-` for a hook")
        );
    }
    // The later one of a name.
    let optim = sgd().with_hook(Jump::default()).unwrap();
    let last = Some(7.0);
    let losses = Vec::new();
    let mut optim = optim.with_hook(Jump { last, losses }).unwrap();
    assert_eq!(optim.hook::<Jump>().unwrap().last, Some(7.0));
    assert_eq!(optim.to_record().hooks().collect::<Vec<_>>(), ["jump"]);
}

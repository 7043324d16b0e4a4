//! Hooks of a program's own: a rule that rejects steps, and an average of the weights that keeps up with the device.

use burn_amp::hook::{Applied, Hook, Proposed, Resolution, State, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

use crate::support::*;

/// Rejects a step whose norm is `far` times that of the last one it has accepted, and halves gradients that are merely long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Jump {
    far: f64,
    last: Option<f64>,
    losses: Vec<Option<f64>>,
}

impl Default for Jump {
    fn default() -> Self {
        Self {
            far: 10.0,
            last: None,
            losses: Vec::new(),
        }
    }
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
            Some(last) if norm > self.far * last => Verdict::Reject {
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
    /// What is loaded, until a step has used it, and how many steps it is of.
    loaded: Option<State>,
    before: usize,
}

impl Sums {
    fn applied(&self) -> usize {
        let applied = |step: &&Resolution| step.is_applied() == Some(true);
        self.before + self.steps.iter().filter(applied).count()
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
        if self.loaded.is_some() {
            return self.loaded.clone();
        }
        let sums = self.sums.iter();
        let state = State::of(&self.applied()).unwrap();
        let with = |state: State, (id, sum): (&u64, &Tensor<1>)| {
            state.with_tensor(ParamId::from(*id), sum.clone())
        };
        (!self.sums.is_empty()).then(|| sums.fold(state, with))
    }

    fn restore(&mut self, state: Option<State>) -> Result<(), String> {
        let before = state.as_ref().map(State::values).transpose()?;
        *self = Self {
            before: before.unwrap_or_default(),
            loaded: state,
            ..Self::default()
        };
        Ok(())
    }
}

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new())
}

/// Burn's own optimizer waits for each step; the fused one does not.
#[test]
fn a_hook_that_keeps_up_with_the_device_sees_the_same_bits() {
    let mut waited = Run::mixed(AdamConfig::new().init()).with_hook(Sums::default());
    let mut pending = Run::mixed(adam()).with_hook(Sums::default());
    waited.train_until(60);
    pending.train_until(60);
    pending.optim.synchronize().unwrap();
    let sums = |run: Option<&Sums>| (run.unwrap().applied(), run.unwrap().bits());
    let expected = sums(waited.optim.hook());
    assert_eq!(sums(pending.optim.hook()), expected);
    let counters = waited.optim.scaler().counters();
    assert_eq!(expected.0 as u64, counters.stepped());
    assert!(counters.skipped() > 0);
    assert_eq!(pending.snapshot().parameters, waited.snapshot().parameters);
}

#[test]
fn a_run_with_hooks_resumes_from_a_file_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let far = 1.5;
    let jump = || Jump {
        far,
        ..Jump::default()
    };
    let build = || {
        Run::mixed(adam())
            .with_hook(jump())
            .with_hook(Sums::default())
    };
    let [_, end] = resumed(folder.path(), build, 25, 60);
    let record = AmpRecord::load(folder.path().join("optim")).unwrap();
    assert_eq!(record.hooks().collect::<Vec<_>>(), ["jump", "sums"]);
    assert!(end.counters.guarded() > 0);
}

fn jumping(optim: ScaledOptimizer) -> Trial {
    Trial::new(optim.with_hook(Jump::default()))
}

impl Trial {
    fn jump(&self) -> &Jump {
        self.optim.hook().unwrap()
    }
}

#[test]
fn what_a_hook_says_of_a_step() {
    let mut run = jumping(sgd());
    let long = Some("clipped by the jump: it is long");
    let far = Some("rejected by the jump: the norm is 50.0");
    for (index, (length, moved, outcome, said)) in [
        (1.0, 1.0, StepOutcome::Stepped, None),
        (5.0, 2.5, StepOutcome::Stepped, long),
        (50.0, 0.0, StepOutcome::Guarded, far),
        (f32::INFINITY, 0.0, StepOutcome::Skipped, None),
        (2.0, 2.0, StepOutcome::Stepped, None),
    ]
    .into_iter()
    .enumerate()
    {
        let before = run.values()[0];
        run.optim.set_loss(index as f64);
        let logged = captured(Level::Info, || run.step(norm(length))).join("\n");
        assert_eq!(before - run.values()[0], moved, "{length}");
        assert_eq!(run.outcome(), Some(outcome), "{length}");
        assert_eq!(logged.contains("jump"), said.is_some(), "{logged}");
        says(&logged, [said.unwrap_or_default()]);
    }
    // An overflow is shown to no hook.
    assert_eq!(run.jump().losses, [0.0, 1.0, 2.0, 4.0].map(Some));
}

#[test]
fn too_many_rejections_name_the_hook_and_leave_no_trace_in_it() {
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(2));
    let mut run = jumping(sgd_under(config));
    for length in [1.0, 90.0, 90.0] {
        run.step(norm(length));
    }
    let before = run.jump().clone();
    let error = run.refused(norm(90.0));
    assert_eq!(
        error.to_string(),
        "the jump rejected 3 steps in a row, the last because the norm is 90.0. Look at the inputs, the learning rate and the \
         loss, or give it a higher threshold"
    );
    assert!(matches!(error, AmpError::AlwaysGuarded { steps: 3, .. }));
    assert_eq!(*run.jump(), before);
    assert_eq!(run.counters().guarded(), 3);
    // A finite step ends the row.
    run.step(norm(1.0));
    run.step(norm(90.0));
}

#[test]
fn a_state_that_a_hook_refuses_changes_nothing() {
    let broken = Jump {
        last: Some(-1.0),
        ..Jump::default()
    };
    let record = sgd().with_hook(broken).to_record();
    let mut run = jumping(sgd());
    run.step(norm(1.0));
    let before = run.record();
    let error = run.optim.load_record(record).unwrap_err();
    is_error(&error, "DamagedRecord", ["jump", "its norm is -1"]);
    assert_eq!(run.record(), before);
}

#[test]
fn states_that_no_hook_takes() {
    let run = || Run::mixed(AdamConfig::new().init());
    let mut donor = run().with_hook(Sums::default()).with_hook(Jump::default());
    donor.train_until(12);
    let record = donor.optim.to_record();

    // Tensors are not dropped.
    let mut without = run().with_hook(Jump::default()).optim;
    let error = without.load_record(record.clone()).unwrap_err();
    is_error(&error, "ForeignRecord", ["`sums`"]);
    let without_sums = record.clone().without_hook("sums");
    without.load_record(without_sums.clone()).unwrap();

    let mut without = run().with_hook(Sums::default()).optim;
    let logged = captured(Level::Warn, || without.load_record(record).unwrap());
    let expected = "memory holds the state of the hook `jump`, which is not here: it is dropped";
    assert_eq!(logged, [expected]);

    // And the other way round.
    let mut with = run().with_hook(Jump::default()).optim;
    let plain = without_sums.without_hook("jump");
    let logged = captured(Level::Warn, || with.load_record(plain).unwrap());
    let expected = "memory holds no state of the hook `jump`, which starts again, after 12 steps";
    assert_eq!(logged, [expected]);
}

/// Gives every parameter half its value.
#[derive(Clone, Debug)]
struct Halve(&'static str);

impl Hook for Halve {
    fn name(&self) -> &str {
        self.0
    }

    fn applied(&mut self, step: &mut Applied<'_>) {
        for index in 0..step.parameters().len() {
            let parameter = &step.parameters()[index];
            let id = parameter.id();
            match parameter.shape().num_dims() {
                1 => step.replace(id, parameter.value::<1>() * 0.5),
                _ => step.replace(id, parameter.value::<2>() * 0.5),
            }
        }
    }
}

/// Steps with these gradients, from fours at a learning rate of 1; what the first parameter is after each.
fn halving<O: ModuleOptim>(optim: ScaledOptimizer<O>, gradients: &[f32]) -> Vec<f32> {
    let mut run = Trial::new(optim.with_hook(Halve("halve")));
    run.model = Pair::of(4.0, DType::F32);
    let steps = gradients.iter().map(|value| {
        run.step(([*value; 6], [0.0; 4]));
        run.values()[0]
    });
    steps.collect()
}

#[test]
fn a_hook_replaces_parameters_where_the_step_was_applied() {
    // A skipped step is not shown.
    let found = halving(sgd(), &[f32::NAN, 1.0]);
    assert_eq!(found, [4.0, 1.5]);
    let fused = FusedSgd::new(SgdConfig::new());
    let fused = ScaledOptimizer::new(fused, &MixedPrecision::f32());
    assert_eq!(halving(fused, &[1.0]), [1.5]);
}

#[test]
fn names_of_hooks() {
    for name in ["", "a.b", "a b", "burn_amp.x"] {
        let error = first_error(sgd().with_hook(Halve(name)));
        assert_eq!(
            error.to_string(),
            format!("`name` is `{name}`, but must be letters, digits, `_` and `-` for a hook")
        );
    }
    // The later one of a name.
    let optim = sgd().with_hook(Jump::default());
    let later = Jump {
        last: Some(7.0),
        ..Jump::default()
    };
    let mut optim = optim.with_hook(later);
    assert_eq!(optim.hook::<Jump>().unwrap().last, Some(7.0));
    assert_eq!(optim.to_record().hooks().collect::<Vec<_>>(), ["jump"]);
}

/// Multiplies gradients.
#[derive(Clone, Debug)]
struct Times(f64);

impl Hook for Times {
    fn name(&self) -> &str {
        "times"
    }

    fn judge(&mut self, _step: &mut Proposed<'_>) -> Verdict {
        Verdict::Clip {
            factor: self.0,
            reason: String::new(),
        }
    }
}

/// A hook shortens gradients, and no more.
#[test]
fn a_factor_out_of_range_is_refused_with_the_name_of_its_hook() {
    for (factor, shown) in [(1.5, "1.5"), (-0.5, "-0.5"), (f64::NAN, "NaN")] {
        let device = Device::default().autodiff();
        let amp = MixedPrecision::f32()
            .with_scaler(GradScalerConfig::new())
            .unwrap();
        let (model, optim) = amp.prepare(
            LinearConfig::new(2, 1).init(&device),
            SgdConfig::new().init(),
        );
        let mut optim = optim.with_hook(Times(factor));
        let loss = amp.autocast(Tensor::<2>::ones([1, 2], &device), |x| model.forward(x));
        let grads = GradientsParams::from_grads(loss.sum().backward(), &model);
        let before = numbers(&model);
        let failed = optim.try_step(0.1, model, grads).map(drop).unwrap_err();
        says(&failed, [&format!("`factor` is {shown}"), "hook `times`"]);
        assert_eq!(numbers(&*failed.module), before);
    }
}

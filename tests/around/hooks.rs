//! Hooks of a program's own: a rule that rejects steps, and an average of the weights that keeps up with the device.

use burn_amp::hook::{Applied, Hook, Parameter, Proposed, Resolution, State, Verdict};
use serde::{Deserialize, Serialize};

use crate::support::*;

/// Rejects a step whose norm is ten times that of the last one it has accepted, and shortens gradients that are merely long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Jump {
    factor: f64,
    last: Option<f64>,
    losses: Vec<Option<f64>>,
}

fn jump() -> Jump {
    Jump::default()
}

impl Hook for Jump {
    fn name(&self) -> &str {
        "jump"
    }

    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        let Some(norm) = step.status().map(GradientStatus::norm) else {
            return Verdict::Wait;
        };
        assert!(step.gradients().is_some());
        self.losses.push(step.loss());
        let (factor, reason) = (self.factor, format!("the norm is {norm:.1}"));
        match self.last {
            Some(last) if norm > 10.0 * last => Verdict::Reject { reason },
            Some(last) if norm > 2.0 * last => Verdict::Clip { factor, reason },
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
        let state = state.map(|state| state.values()).transpose()?;
        *self = state.unwrap_or_default();
        match self.last {
            Some(last) if last < 0.0 => Err(format!("its norm is {last}")),
            _ => Ok(()),
        }
    }
}

fn is_bias(found: &Parameter) -> bool {
    found.shape().num_dims() == 1
}

/// The sum of the first bias over all steps that were applied, on whatever decides them; and how often it was asked.
#[derive(Clone, Debug, Default)]
struct Sum {
    sum: Option<Tensor<1>>,
    steps: Vec<Resolution>,
    judged: u64,
}

impl Hook for Sum {
    fn name(&self) -> &str {
        "sum"
    }

    // What the host does not decide, the device does in `applied`.
    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        assert!(step.parameters().iter().any(is_bias));
        self.judged += 1;
        Verdict::Apply
    }

    fn applied(&mut self, step: &mut Applied<'_>) {
        let mut parameters = step.parameters().iter();
        let bias = parameters.find(|found| is_bias(found)).unwrap();
        assert!(bias.is_trained());
        let mut sum: Tensor<1> = bias.value();
        if let Some(skipped) = step.skipped() {
            sum = sum * (1.0 - skipped);
        }
        if let Some(before) = self.sum.take() {
            sum = before + sum;
        }
        self.sum = Some(sum);
        self.steps.push(step.resolution());
    }

    fn state(&self) -> Option<State> {
        let sum = self.sum.clone()?;
        Some(State::of(&()).unwrap().with_tensor(ParamId::from(1), sum))
    }

    fn restore(&mut self, state: Option<State>) -> Result<(), String> {
        let tensor = |state: State| state.tensor(ParamId::from(1), &Device::default());
        self.sum = state.and_then(tensor);
        Ok(())
    }
}

/// Burn's own optimizer waits for each step; the fused one does not. Both go on from a file, tensors of the hook included.
#[test]
fn a_hook_that_keeps_up_with_the_device_sees_the_same_bits() {
    fn trained<O: ModuleOptim>(optim: impl Fn() -> O) -> [Snapshot; 2] {
        let build = || Run::mixed(optim()).with_hook(Sum::default());
        let folder = tempfile::tempdir().unwrap();
        let ends = resumed(folder.path(), build, 25, 60);
        let mut run = build();
        run.train_until(25);
        run.optim.synchronize().unwrap();
        let steps = run.optim.hook::<Sum>().unwrap().steps.iter();
        let applied = steps.filter(|step| step.is_applied() == Some(true));
        assert_eq!(applied.count() as u64, ends[0].counters.stepped());
        ends
    }
    let waited = trained(|| AdamConfig::new().init());
    assert!(trained(|| FusedAdam::new(AdamConfig::new())) == waited);
    assert!(waited[0].counters.skipped() > 0);
}

#[test]
fn too_many_rejections_name_the_hook_and_leave_no_trace_in_it() {
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(2));
    let mut run = Trial::new(sgd_under(config).with_hook(jump()));
    run.step(norm(1.0));
    (0..2).for_each(|_| run.step(norm(90.0)));
    let before = run.optim.hook::<Jump>().unwrap().clone();
    let error = run.refused(norm(90.0));
    let wording = "the hook `jump` rejected 3 steps in a row, the last because the norm is 90.0. Look at the inputs, the learning rate and the \
         loss, or raise the hook's threshold";
    is_error(&error, "AlwaysGuarded", [wording]);
    assert_eq!(run.optim.hook(), Some(&before));
    assert_eq!(run.counters().guarded(), 3);
    // A finite step ends the row.
    run.step(norm(1.0));
    run.step(norm(90.0));
}

/// And a state without tensors that no hook takes is dropped, and the log says so. What becomes of tensors is in `records.rs`.
#[test]
fn a_state_that_a_hook_refuses_changes_nothing() {
    let mut broken = jump();
    broken.last = Some(-1.0);
    let record = sgd().with_hook(broken).to_record();
    let mut run = Trial::new(sgd().with_hook(jump()));
    run.step(norm(1.0));
    let error = refused(&mut run.optim, |optim| optim.load_record(record.clone()));
    is_error(&error, "DamagedRecord", ["jump", "its norm is -1"]);

    let expected = "memory holds the state of the hook `jump`, which is not here: it is dropped";
    warns_once([expected], || sgd().load_record(record).unwrap());
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
            match (parameter.id(), is_bias(parameter)) {
                (id, true) => step.replace(id, parameter.value::<1>() * 0.5),
                (id, false) => step.replace(id, parameter.value::<2>() * 0.5),
            }
        }
    }
}

/// A skipped step is not shown. From fours, at a learning rate of 1: what the first value is after each step.
#[test]
fn a_hook_replaces_parameters_where_the_step_was_applied() {
    fn halving<O: ModuleOptim>(optim: ScaledOptimizer<O>, gradients: [f64; 2]) -> [f64; 2] {
        let mut run = Trial::new(optim.with_hook(Halve("halve"))).with_value(4.0);
        gradients.map(|value| {
            run.step(norm(value));
            run.values()[0]
        })
    }
    assert_eq!(halving(sgd(), [f64::NAN, 1.0]), [4.0, 1.5]);
    let fused = FusedSgd::new(SgdConfig::new());
    let fused = ScaledOptimizer::new(fused, &MixedPrecision::f32());
    assert_eq!(halving(fused, [1.0, 0.5]), [1.5, 0.5]);
}

/// The device is asked first; the host, where another hook waits.
#[test]
fn a_hook_that_is_asked_again_has_seen_one_step() {
    let run = Run::mixed(FusedAdam::new(AdamConfig::new()));
    let mut run = run.with_hook(Sum::default()).with_hook(Halve("halve"));
    run.train_until(20);
    let stepped = run.optim.scaler().counters().stepped();
    assert_eq!(run.optim.hook::<Sum>().unwrap().judged, stepped);
}

/// Gradients that were changed after their test: whoever measures them finds it, after another has accepted the step.
#[test]
fn an_overflow_that_a_hook_finds_leaves_no_trace_in_the_others() {
    let mut run = Trial::new(sgd().with_hook(Sum::default()).with_hook(jump()));
    let grads = run.unscaled(norm(1.0)).mul_scalar(f64::INFINITY);
    run.take(grads);
    assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
    assert_eq!(run.optim.hook::<Sum>().unwrap().judged, 0);
}

#[test]
fn names_of_hooks() {
    for name in ["", "a.b", "a b", "burn_amp.x"] {
        let error = first_error(sgd().with_hook(Halve(name))).to_string();
        let allowed = "letters, digits, `_` and `-` for a hook";
        assert_eq!(error, format!("`name` is `{name}`, but must be {allowed}"));
    }
    // That of another hook, whichever came first.
    let averages = EmaConfig::new;
    for taken in [
        sgd().with_ema(averages()).with_hook(Halve("ema")),
        sgd().with_hook(Halve("ema")).with_ema(averages()),
        sgd().with_hook(Halve("jump")).with_hook(jump()),
    ] {
        let part = "must be the name of no other hook";
        is_error(&first_error(taken), "InvalidValue", [part]);
    }
    // The later one of a type.
    let factor = 7.0;
    let later = Jump { factor, ..jump() };
    let mut optim = sgd().with_hook(jump()).with_hook(later);
    assert_eq!(optim.hook::<Jump>().unwrap().factor, 7.0);
    assert_eq!(optim.to_record().hooks().collect::<Vec<_>>(), ["jump"]);
}

/// A hook shortens gradients, and no more. The window is empty then: no loss of it is left for the next one.
#[test]
fn a_factor_out_of_range_is_refused_with_the_name_of_its_hook() {
    for factor in [2.0, 0.0, -0.5, f64::NAN] {
        let wrong = Jump { factor, ..jump() };
        let mut run = Trial::new(sgd().with_accumulation(2).with_hook(wrong));
        for (loss, length) in [(1.0, 1.0), (8.0, 5.0), (2.0, 1.0)] {
            run.optim.set_loss(loss);
            run.step(norm(length));
            run.optim.set_loss(loss);
            if length == 1.0 {
                run.step(norm(length));
                continue;
            }
            let shown = format!("`factor` is {factor}");
            let parts = [shown.as_str(), "hook `jump`"];
            is_error(&run.refused(norm(length)), "InvalidValue", parts);
            assert_eq!((run.outcome(), run.window()), (None, 0));
        }
        let judged = &run.optim.hook::<Jump>().unwrap().losses;
        assert_eq!(*judged, [1.0, 2.0].map(Some));
    }
}

//! Steps of one executor beside those of another: the same bits, whatever stands around the step. Each call of
//! `pending` is a row.

use super::run::{
    Event, Executor, Run, Values, adam, batch, begun, captured, config, event, is_flex,
    learning_rate, nesterov, resume, train,
};
use super::{captured::has_graphs, gradients};
use crate::support::*;

/// Enough for some that are skipped and some that are clipped, before and after gradients by hand.
const ELSEWHERE: usize = 60;

/// What stands around a step, and which steps are made.
#[derive(Default)]
struct Plan {
    /// On Flex; elsewhere at most [`ELSEWHERE`] where nothing else is said.
    steps: usize,
    elsewhere: Option<usize>,
    /// `config()` if it is none.
    scaler: Option<GradScalerConfig>,
    /// Of all parameters, or of those of this name.
    clips: Vec<(Option<&'static str>, GradientClip)>,
    ema: Option<EmaConfig>,
    /// From this step of `steps` on gradients that no backward pass has made, in this dtype.
    by_hand: Option<(usize, FloatDType)>,
    /// The step from which on `hidden.weight` is trained; all of `hidden` is frozen before. Else all are trained from the begin.
    thawed: Option<usize>,
    /// Whether a captured step makes them, too.
    is_captured: bool,
}

impl Plan {
    /// The steps on this device.
    fn made(&self) -> usize {
        match is_flex() {
            true => self.steps,
            false => self.steps.min(self.elsewhere.unwrap_or(ELSEWHERE)),
        }
    }

    fn run<O: ModuleOptim>(&self, optim: O) -> Run<O> {
        let mut net = Net::dense(&device());
        if self.thawed.is_some() {
            net.hidden = net.hidden.no_grad();
        }
        let scaler = self.scaler.unwrap_or_else(config);
        let mut run = Run::with(optim, net, &f16_under(scaler));
        for (group, clip) in &self.clips {
            let group = group.map(ParamGroup::from_predicate);
            run.optim = match group {
                None => run.optim.with_clipping(*clip),
                Some(group) => run.optim.with_group_clipping(group, *clip),
            };
        }
        if let Some(ema) = &self.ema {
            run.optim = run.optim.with_ema(ema.clone());
        }
        run
    }

    /// Returns the loss, if there is one.
    fn step<O: ModuleOptim>(&self, executor: &mut Executor<'_, O>, step: usize) -> Option<u32> {
        if self.thawed == Some(step) {
            let run = executor.run();
            let weight = run.model.hidden.weight.clone().set_require_grad(true);
            // `set_require_grad` leaves the parameter's own value, without its cast.
            run.model.hidden.weight = run.amp.attach(weight);
        }
        match self.by_hand {
            Some((from, dtype)) if step * self.steps >= from * self.made() => {
                let run = executor.run();
                let mut grads = gradients(&run.model, step % 40, dtype);
                if step % 40 == 17 {
                    let id = run.model.head.weight.id;
                    let grad = grads.remove::<2>(id).unwrap();
                    grads.register(id, grad * f32::INFINITY);
                }
                run.step(1e-3, grads);
                None
            }
            _ => {
                let rows = if step % 5 == 4 { 3 } else { 4 };
                let batch = batch(step, event(step), rows);
                let loss = executor.step(learning_rate(step), batch);
                is_compared(step).then(|| loss.into_scalar::<f32>().to_bits())
            }
        }
    }
}

/// Whether the values are, after this step.
fn is_compared(step: usize) -> bool {
    step % 20 == 3 || step < 8
}

fn values<O: ModuleOptim>(executor: &Executor<'_, O>) -> Values {
    parameters(&executor.net())
}

/// Makes the steps of the plan by both.
fn same_bits<A: ModuleOptim, B: ModuleOptim>(
    name: &str,
    plan: &Plan,
    mut one: Executor<'_, A>,
    mut other: Executor<'_, B>,
) {
    let mut clipped = 0;
    for step in 0..plan.made() {
        let at = format!("{name}, step {step}");
        let losses = [plan.step(&mut one, step), plan.step(&mut other, step)];
        assert_eq!(losses[0], losses[1], "{at}");
        if is_compared(step) {
            assert_eq!(values(&one), values(&other), "{at}");
        }
        if step % 100 == 45 {
            assert!(one.record() == other.record(), "{at}");
        }
        if step % 10 == 0 {
            one.synchronize();
            other.synchronize();
            let (one, other) = (one.optim().scaler(), other.optim().scaler());
            assert_eq!(one.last_status(), other.last_status(), "{at}");
            let found = one.last_status().unwrap().clipped();
            let is_clipped = one.last_outcome() == Some(StepOutcome::Stepped);
            assert_eq!(found.is_some(), is_clipped && !plan.clips.is_empty());
            clipped += found.unwrap_or(0);
        }
    }
    one.synchronize();
    other.synchronize();
    assert_eq!(values(&one), values(&other), "{name}");
    // With the loss scale, counters and averages.
    assert!(one.record() == other.record(), "{name}");
    let counters = one.optim().scaler().counters();
    assert!(counters.skipped() > 0, "{name}");
    assert_eq!(clipped > 0, !plan.clips.is_empty(), "{name}");
    assert_eq!(one.optim().ema().is_some(), plan.ema.is_some(), "{name}");
    if let Some(ema) = one.optim().ema() {
        assert_eq!(ema.updates(), counters.stepped(), "{name}");
        assert!(ema.get(&one.net().hidden.weight).is_some(), "{name}");
    }
}

/// Steps that the device decides, beside those that are waited for, and those that are recorded.
fn pending<O: ModuleOptim + Clone>(name: &str, optim: O, plan: Plan) {
    let mut waited = plan.run(Waited(optim.clone()));
    let own = &mut plan.run(optim.clone());
    same_bits(name, &plan, Executor::Run(own), Executor::Run(&mut waited));
    if plan.is_captured {
        let (own, recorded) = (&mut plan.run(optim.clone()), &mut captured(plan.run(optim)));
        let (one, other) = (Executor::Run(own), Executor::Captured(recorded));
        same_bits(name, &plan, one, other);
        assert_eq!(recorded.shapes(), if has_graphs() { 2 } else { 0 });
    }
}

fn decayed_adam() -> FusedAdam {
    let penalty = Some(WeightDecayConfig::new(0.01));
    FusedAdam::new(AdamConfig::new().with_weight_decay(penalty))
}

#[test]
fn nothing_around() {
    let plan = Plan {
        steps: 200,
        elsewhere: Some(200),
        is_captured: true,
        ..Plan::default()
    };
    pending("plain", adam(), plan);
    let plan = Plan {
        scaler: Some(GradScalerConfig::new().with_growth_interval(30)),
        by_hand: Some((0, FloatDType::F32)),
        steps: 600,
        ..Plan::default()
    };
    pending("by hand", adam(), plan);
}

/// A number from 0 to 1 that is the same in every run.
fn random(step: usize, which: usize) -> f32 {
    (wave(1 + 3 * step + which, 1, 1.0)[0] + 1.0) / 2.0
}

#[test]
fn whatever_happens_to_three_executors() {
    whatever_happens(300);
}

#[test]
#[ignore = "slow"]
fn sweep_whatever_happens_in_ten_thousand_steps() {
    whatever_happens(10_000);
}

/// Overflows, NaN losses, batches of two shapes, and records that all go on from, at random.
fn whatever_happens(steps: usize) {
    let steps = if is_flex() { steps } else { 3 * ELSEWHERE };
    let mut host = begun(Waited(adam()), config());
    let [mut on_device, recorded] = [(); 2].map(|()| begun(adam(), config()));
    let amp = recorded.amp.clone();
    let mut recorded = captured(recorded);
    let mut records = 0;
    for step in 0..=steps {
        if step == steps || random(step, 2) < 0.005 {
            let bytes = resume(&mut host, Waited(adam()));
            let ((model, optim), amp) = (recorded.into_parts(), amp.clone());
            let mut by_hand = Run { amp, model, optim };
            for run in [&mut on_device, &mut by_hand] {
                assert_eq!(parameters(&run.model), parameters(&host.model), "{step}");
                assert!(bytes == resume(run, adam()), "step {step}");
            }
            recorded = captured(by_hand);
            records += 1;
        }
        if step == steps {
            break;
        }
        let event = match random(step, 0) {
            share if share < 0.03 => Event::Overflow,
            share if share < 0.04 => Event::Nan,
            _ => Event::Nothing,
        };
        let rows = if random(step, 1) < 0.2 { 3 } else { 4 };
        let lr = learning_rate(step);
        train(&mut host, lr, batch(step, event, rows));
        train(&mut on_device, lr, batch(step, event, rows));
        recorded.step(lr, batch(step, event, rows)).unwrap();
    }
    let counters = host.optim.scaler().counters();
    assert_eq!(counters.steps(), steps as u64);
    assert!(counters.skipped() > counters.bad_losses());
    assert!(counters.bad_losses() > 0);
    assert!(records > 1 || !is_flex());
}

#[test]
fn whatever_the_rule_and_the_schedule() {
    let adam_w = AdamWConfig::new().with_amsgrad(true).with_weight_decay(0.1);
    let adaptive = Schedule::AdaptiveInterval {
        min_interval: 5,
        max_interval: 100,
    };
    let of = |scaler: GradScalerConfig, is_captured| Plan {
        steps: 90,
        scaler: Some(scaler),
        is_captured,
        ..Plan::default()
    };
    let scaler = config().with_schedule(adaptive);
    pending("adaptive", FusedAdamW::new(adam_w), of(scaler, true));
    let tolerant = config().with_hysteresis(3).with_warmup_steps(60);
    let tolerant = tolerant.with_warmup_scale(256.0);
    pending("tolerant", nesterov(), of(tolerant, true));
    // What the device cannot move, the host does, and waits.
    let other_factor = config().with_growth_factor(1.5);
    pending("growth by 1.5", nesterov(), of(other_factor, false));
    let log_max = config().with_schedule(Schedule::log_max());
    pending("log max", nesterov(), of(log_max, false));
}

#[test]
fn averages() {
    let of = |steps, ema| Plan {
        clips: vec![(None, GradientClip::GlobalNorm(0.1))],
        ema: Some(ema),
        steps,
        ..Plan::default()
    };
    let ema = || EmaConfig::new().with_momentum(0.9);
    pending("averages", adam(), of(120, ema()));
    // The host has to know when.
    let overwritten = EmaConfig::new().with_overwrite_frequency(Some(3));
    pending("overwritten", adam(), of(60, overwritten));
    // What has no average begins with one.
    let mut thawed = of(60, ema());
    thawed.thawed = Some(20);
    pending("thawed", adam(), thawed);
}

/// In steps by backward passes, some of which overflow, and then by hand.
#[test]
fn clipping() {
    use GradientClip::{GlobalNorm, Norm, Value};
    let of = |steps, dtype, clips: &[_]| Plan {
        clips: clips.to_vec(),
        by_hand: Some((steps / 2, dtype)),
        steps,
        ..Plan::default()
    };
    let (f32, all, head) = (FloatDType::F32, None, Some("head"));
    let global = [(all, GlobalNorm(0.05))];
    pending("global norm", decayed_adam(), of(120, f32, &global));
    let bias = (Some("hidden.bias"), Norm(0.001));
    let groups = [(all, GlobalNorm(0.02)), (head, GlobalNorm(0.05)), bias];
    pending("groups", nesterov(), of(120, FloatDType::F16, &groups));
    let weight = (Some("head.weight"), GlobalNorm(f64::INFINITY));
    let each = [(all, Norm(0.03)), (Some("bias"), Value(0.004)), weight];
    pending("norms and values", decayed_adam(), of(120, f32, &each));
    let values = [(all, Value(0.004))];
    pending("values", nesterov(), of(100, f32, &values));

    // Not by hand.
    let clips = vec![(None, GlobalNorm(0.1)), (Some("head"), Value(0.02))];
    let plan = Plan {
        elsewhere: Some(40),
        clips,
        is_captured: true,
        steps: 100,
        ..Plan::default()
    };
    pending("captured", adam(), plan);

    // Two groups of parameters are two calls of the kernel; the norm is of both.
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let biases = config.clone().with_amsgrad(true);
    let grouped = FusedAdamW::new(config);
    let grouped = grouped.with_group(ParamGroup::from_predicate("bias"), biases);
    let plan = of(100, f32, &global);
    pending("optimizer's groups", grouped, plan);
    // The optimizer's own clipping comes after that of the `ScaledOptimizer`, which waits for it.
    let own = Some(GradientClippingConfig::Norm(0.01));
    let own = FusedAdam::new(AdamConfig::new().with_grad_clipping(own));
    pending("the optimizer's own", own, of(60, f32, &global));
}

//! Steps that the device decides beside those that are waited for: the same bits, whatever stands around the step. Each call of
//! `same_bits` is a row.

use burn_amp_tests::{prelude::*, wave};

use super::{
    captured::{Batch, batch, loss},
    unheard::{Event, Net, Run, Waited, config, event, is_flex},
};

/// Enough for some that are skipped and some that are clipped, before and after gradients by hand.
const ELSEWHERE: usize = 60;

/// What stands around a step, and which steps are made.
struct Plan {
    /// On Flex. Elsewhere [`ELSEWHERE`] at most.
    steps: usize,
    scaler: GradScalerConfig,
    /// Of all parameters, or of those of this name.
    clips: Vec<(Option<&'static str>, GradientClip)>,
    ema: Option<EmaConfig>,
    /// From this step of `steps` on gradients that no backward pass has made, in this dtype.
    by_hand: Option<(usize, FloatDType)>,
}

impl Plan {
    fn of(steps: usize) -> Self {
        Self {
            steps,
            scaler: config(),
            clips: Vec::new(),
            ema: None,
            by_hand: None,
        }
    }

    /// The steps on this device.
    fn made(&self) -> usize {
        match is_flex() {
            true => self.steps,
            false => self.steps.min(ELSEWHERE),
        }
    }

    fn run<O: ModuleOptim>(&self, net: &Net, optim: O) -> Run<O> {
        let mut run = Run::of(net, optim, self.scaler);
        for (group, clip) in &self.clips {
            let clipped = match group {
                None => run.optim.with_clipping(*clip),
                Some(name) => {
                    let group = ParamGroup::from_predicate(*name);
                    run.optim.with_group_clipping(group, *clip)
                }
            };
            run.optim = clipped.unwrap();
        }
        if let Some(ema) = &self.ema {
            run.optim = run.optim.with_ema(ema.clone()).unwrap();
        }
        run
    }

    fn step<O: ModuleOptim>(&self, run: &mut Run<O>, step: usize) {
        match self.by_hand {
            Some((from, dtype)) if step * self.steps >= from * self.made() => {
                run.step_in(dtype, step, step % 40 == 17);
            }
            _ => run.step(step, event(step)).unwrap(),
        }
    }
}

fn average<O: ModuleOptim>(run: &Run<O>) -> Option<Vec<u32>> {
    let average = run.optim.ema()?.get(&run.net.hidden.weight)?;
    let values = average.into_data();
    Some(values.iter::<f32>().map(f32::to_bits).collect())
}

fn record<O: ModuleOptim>(run: &mut Run<O>) -> Bytes {
    run.optim.into_bytes().unwrap()
}

fn same_bits<O: ModuleOptim + Clone>(name: &str, optim: O, plan: Plan) {
    let net = Net::new(&Device::default().autodiff());
    let mut pending = plan.run(&net, optim.clone());
    let mut waited = plan.run(&net, Waited(optim));
    let mut clipped = 0;
    for step in 0..plan.made() {
        let at = format!("{name}, step {step}");
        plan.step(&mut pending, step);
        plan.step(&mut waited, step);
        if step % 20 == 3 {
            assert_eq!(pending.values(), waited.values(), "{at}");
            assert_eq!(average(&pending), average(&waited), "{at}");
        }
        if step % 100 == 45 {
            // While steps are under way.
            assert!(record(&mut pending) == record(&mut waited), "{at}");
        }
        if step % 10 == 0 {
            pending.optim.synchronize().unwrap();
            let [one, other] = [pending.optim.scaler(), waited.optim.scaler()];
            assert_eq!(one.last_status(), other.last_status(), "{at}");
            let found = one.last_status().unwrap().clipped();
            let is_clipped = one.last_outcome() == Some(StepOutcome::Stepped);
            assert_eq!(found.is_some(), is_clipped && !plan.clips.is_empty());
            clipped += found.unwrap_or(0);
        }
    }
    pending.optim.synchronize().unwrap();
    assert_eq!(pending.values(), waited.values(), "{name}");
    assert_eq!(average(&pending), average(&waited), "{name}");
    assert!(record(&mut pending) == record(&mut waited), "{name}");
    let [one, other] = [pending.optim.scaler(), waited.optim.scaler()];
    assert_eq!(one.schedule(), other.schedule(), "{name}");
    assert_eq!(one.counters(), other.counters(), "{name}");
    assert!(one.counters().skipped() > 0, "{name}");
    assert_eq!(clipped > 0, !plan.clips.is_empty(), "{name}");
    for ema in [pending.optim.ema(), waited.optim.ema()] {
        let updates = ema.map_or(one.counters().stepped(), Ema::updates);
        assert_eq!(updates, one.counters().stepped(), "{name}");
    }
}

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new()).unwrap()
}

fn decayed_adam() -> FusedAdam {
    let penalty = Some(WeightDecayConfig::new(0.01));
    FusedAdam::new(AdamConfig::new().with_weight_decay(penalty)).unwrap()
}

fn nesterov() -> FusedSgd {
    let momentum = MomentumConfig::new().with_nesterov(true);
    FusedSgd::new(SgdConfig::new().with_momentum(Some(momentum))).unwrap()
}

#[test]
fn nothing_around() {
    same_bits("plain", adam(), Plan::of(300));
}

/// A number from 0 to 1 that is the same in every run.
fn random(step: usize, which: usize) -> f32 {
    (wave(1 + 3 * step + which, 1, 1.0)[0] + 1.0) / 2.0
}

/// Steps by hand, as those of a captured step are made.
struct Eager<O> {
    amp: MixedPrecision,
    net: Net,
    optim: ScaledOptimizer<O>,
}

impl<O: ModuleOptim> Eager<O> {
    fn new(net: &Net, optim: O) -> Self {
        let amp = MixedPrecision::f16().with_scaler(config()).unwrap();
        Self {
            net: net.clone().apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(optim, &amp),
            amp,
        }
    }

    fn step(&mut self, lr: f64, batch: Batch) {
        let loss = loss(&self.amp, &self.net, batch);
        let grads = GradientsParams::from_grads(loss.backward(), &self.net);
        self.net = self.optim.step(lr, self.net.clone(), grads);
    }

    /// Goes on from its own record with a new optimizer.
    fn resume(&mut self, optim: O) -> Bytes {
        let bytes = self.optim.into_bytes().unwrap();
        self.optim = ScaledOptimizer::new(optim, &self.amp);
        self.optim.from_bytes(bytes.clone()).unwrap();
        bytes
    }
}

/// Overflows, NaN losses, batches of two shapes, and records that all go on from, at random.
#[test]
fn whatever_happens_in_ten_thousand_steps_of_three_executors() {
    let steps = if is_flex() { 10_000 } else { 3 * ELSEWHERE };
    let device = Device::default().autodiff();
    let net = Net::new(&device);
    let mut host = Eager::new(&net, Waited(adam()));
    let mut on_device = Eager::new(&net, adam());
    let Eager { amp, net, optim } = Eager::new(&net, adam());
    let of = |net: &Net, batch| loss(&amp, net, batch);
    let mut recorded = CapturedStep::new(net, optim, of).unwrap();
    let mut records = 0;
    for step in 0..steps {
        let event = match random(step, 0) {
            share if share < 0.03 => Event::Overflow,
            share if share < 0.04 => Event::Nan,
            _ => Event::Nothing,
        };
        let rows = if random(step, 1) < 0.2 { 3 } else { 4 };
        let lr = 1e-3 / (1.0 + step as f64 / 500.0);
        host.step(lr, batch(step, event, rows, &device));
        on_device.step(lr, batch(step, event, rows, &device));
        let found = recorded.step(lr, batch(step, event, rows, &device));
        found.unwrap();
        if random(step, 2) < 0.005 {
            let bytes = host.resume(Waited(adam()));
            assert!(bytes == on_device.resume(adam()), "step {step}");
            let (net, mut optim) = recorded.into_parts();
            assert_eq!(net.values(), host.net.values(), "step {step}");
            assert_eq!(on_device.net.values(), host.net.values(), "step {step}");
            assert!(bytes == optim.into_bytes().unwrap(), "step {step}");
            drop(optim);
            let mut optim = ScaledOptimizer::new(adam(), &amp);
            optim.from_bytes(bytes).unwrap();
            recorded = CapturedStep::new(net, optim, of).unwrap();
            records += 1;
        }
    }
    let counters = host.optim.scaler().counters();
    assert_eq!(counters.steps(), steps as u64);
    assert!(
        counters.skipped() > 0 && counters.bad_losses() > 0,
        "{counters:?}"
    );
    assert!(records > 0 || !is_flex());
    let bytes = host.resume(Waited(adam()));
    assert!(bytes == on_device.resume(adam()));
    let (net, mut optim) = recorded.into_parts();
    assert!(bytes == optim.into_bytes().unwrap());
    assert_eq!(
        [net.values(), on_device.net.values()],
        [host.net.values(), host.net.values()]
    );
}

#[test]
fn gradients_by_hand_for_hundreds_of_steps() {
    let plan = Plan {
        scaler: GradScalerConfig::new().with_growth_interval(30),
        by_hand: Some((0, FloatDType::F32)),
        ..Plan::of(600)
    };
    same_bits("by hand", adam(), plan);
}

#[test]
fn whatever_the_rule_and_the_schedule() {
    let adam_w = AdamWConfig::new().with_amsgrad(true).with_weight_decay(0.1);
    let adam_w = FusedAdamW::new(adam_w).unwrap();
    let adaptive = Schedule::AdaptiveInterval {
        min_interval: 5,
        max_interval: 100,
    };
    let of = |scaler| Plan {
        scaler,
        ..Plan::of(150)
    };
    same_bits("adaptive", adam_w, of(config().with_schedule(adaptive)));
    let tolerant = config().with_hysteresis(3).with_warmup_steps(60);
    let tolerant = tolerant.with_warmup_scale(256.0);
    same_bits("tolerant", nesterov(), of(tolerant));
    // What the device cannot move, the host does, and waits.
    let other_factor = config().with_growth_factor(1.5);
    same_bits("growth by 1.5", nesterov(), of(other_factor));
    let log_max = config().with_schedule(Schedule::log_max());
    same_bits("log max", nesterov(), of(log_max));
}

#[test]
fn averages() {
    let of = |steps, ema| Plan {
        clips: vec![(None, GradientClip::GlobalNorm(0.1))],
        ema: Some(ema),
        ..Plan::of(steps)
    };
    let ema = EmaConfig::new;
    same_bits("averages", adam(), of(200, ema().with_momentum(0.9)));
    // The host has to know when.
    let overwritten = ema().with_overwrite_frequency(Some(3));
    same_bits("overwritten", adam(), of(60, overwritten));
}

/// In steps by backward passes, some of which overflow, and then by hand.
#[test]
fn clipping() {
    use GradientClip::{GlobalNorm, Norm, Value};
    let of = |steps, dtype, clips: &[_]| Plan {
        clips: clips.to_vec(),
        by_hand: Some((steps / 2, dtype)),
        ..Plan::of(steps)
    };
    let f32 = FloatDType::F32;
    let global = [(None, GlobalNorm(0.05))];
    same_bits("global norm", decayed_adam(), of(300, f32, &global));
    let groups = [
        (None, GlobalNorm(0.02)),
        (Some("output"), GlobalNorm(0.05)),
        (Some("hidden.bias"), Norm(0.001)),
    ];
    same_bits("groups", nesterov(), of(200, FloatDType::F16, &groups));
    let each = [
        (None, Norm(0.03)),
        (Some("bias"), Value(0.004)),
        (Some("output.weight"), GlobalNorm(f64::INFINITY)),
    ];
    same_bits("norms and values", decayed_adam(), of(200, f32, &each));
    let values = [(None, Value(0.004))];
    same_bits("values", nesterov(), of(150, f32, &values));

    // Two groups of parameters are two calls of the kernel; the norm is of both.
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let biases = config.clone().with_amsgrad(true);
    let grouped = FusedAdamW::new(config).unwrap();
    let grouped = grouped.with_group(ParamGroup::from_predicate("bias"), biases);
    let plan = of(150, f32, &global);
    same_bits("optimizer's groups", grouped.unwrap(), plan);
    // The optimizer's own clipping comes after that of the `ScaledOptimizer`, which waits for it.
    let own = Some(GradientClippingConfig::Norm(0.01));
    let own = FusedAdam::new(AdamConfig::new().with_grad_clipping(own)).unwrap();
    same_bits("the optimizer's own", own, of(60, f32, &global));
}

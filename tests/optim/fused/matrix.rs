//! Steps that the device decides, beside those that are waited for: the same bits, whatever stands around the step. Drawn runs of them, and of
//! captured ones, are in `tests/oracle`.

use super::run::{Run, batch, config, event, is_flex, train};
use super::{adam, nesterov};
use crate::support::*;
use GradientClip::{GlobalNorm, Norm, Value};

/// What stands around a step.
#[derive(Default)]
pub struct Plan {
    /// `config()` if it is none.
    pub scaler: Option<GradScalerConfig>,
    /// Of all parameters, or of those of this name.
    pub clips: Vec<(Option<&'static str>, GradientClip)>,
    pub ema: Option<EmaConfig>,
    /// `hidden` is frozen, and from this step on its weight is trained.
    pub thawed: Option<usize>,
}

impl Plan {
    pub fn clipped(clips: &[(Option<&'static str>, GradientClip)]) -> Self {
        Self {
            clips: clips.to_vec(),
            ..Self::default()
        }
    }

    pub fn scaled(scaler: GradScalerConfig) -> Self {
        Self {
            scaler: Some(scaler),
            ..Self::default()
        }
    }

    pub fn run<O: ModuleOptim>(&self, optim: O) -> Run<O> {
        let mut net = Net::dense(&device());
        if self.thawed.is_some() {
            net.hidden = net.hidden.no_grad();
        }
        let scaler = self.scaler.unwrap_or_else(config);
        let mut run = Run::with(optim, net, &f16_under(scaler));
        for (group, clip) in &self.clips {
            run.optim = match group.map(ParamGroup::from_predicate) {
                None => run.optim.with_clipping(*clip),
                Some(group) => run.optim.with_group_clipping(group, *clip),
            };
        }
        if let Some(ema) = &self.ema {
            run.optim = run.optim.with_ema(ema.clone());
        }
        run
    }

    /// Losses, what was found now and then, records in the middle and at the end, and the parameters.
    fn seen<O: ModuleOptim>(&self, optim: O) -> (Vec<u32>, Vec<GradientStatus>, Vec<Bytes>, Net) {
        let (mut run, mut losses) = (self.run(optim), Vec::new());
        let (mut found, mut records) = (Vec::new(), Vec::new());
        for step in 0..if is_flex() { 90 } else { 60 } {
            if self.thawed == Some(step) {
                let weight = run.model.hidden.weight.clone().set_require_grad(true);
                // `set_require_grad` leaves the parameter's own value, without its cast.
                run.model.hidden.weight = run.amp.attach(weight);
            }
            let loss = train(&mut run, 1e-3, batch(step, event(step), 4));
            losses.push(loss.into_scalar::<f32>().to_bits());
            if step == 45 {
                // While steps are in flight.
                records.push(run.optim.into_bytes().unwrap());
            }
            if step % 10 == 0 {
                run.optim.synchronize().unwrap();
                let is_stepped = run.optim.scaler().last_outcome() == Some(StepOutcome::Stepped);
                let status = run.optim.scaler().last_status().unwrap();
                let is_clipped = is_stepped && !self.clips.is_empty();
                assert_eq!(status.clipped().is_some(), is_clipped, "step {step}");
                found.push(status);
            }
        }
        // With the loss scale, counters and averages.
        records.push(run.optim.into_bytes().unwrap());
        let clipped = found.iter().filter_map(GradientStatus::clipped);
        assert_eq!(clipped.sum::<usize>() > 0, !self.clips.is_empty());
        assert!(run.counters().skipped() > 0);
        assert_eq!(run.optim.ema().is_some(), self.ema.is_some());
        if let Some(ema) = run.optim.ema() {
            assert_eq!(ema.updates(), run.counters().stepped());
            assert!(ema.get(&run.model.hidden.weight).is_some());
        }
        (losses, found, records, run.model)
    }
}

fn pending<O: ModuleOptim + Clone>(name: &str, optim: O, plan: Plan) {
    let (waited, own) = (plan.seen(Waited(optim.clone())), plan.seen(optim));
    assert_eq!(own.0, waited.0, "{name}");
    assert_eq!(own.1, waited.1, "{name}");
    assert!(own.2 == waited.2, "{name}");
    assert!(parameters(&own.3) == parameters(&waited.3), "{name}");
}

pub fn adaptive() -> GradScalerConfig {
    config().with_schedule(Schedule::AdaptiveInterval {
        min_interval: 5,
        max_interval: 100,
    })
}

pub fn tolerant() -> GradScalerConfig {
    let tolerant = config().with_hysteresis(3).with_warmup_steps(60);
    tolerant.with_warmup_scale(256.0)
}

#[test]
fn whatever_the_rule_and_the_schedule() {
    let adam_w = AdamWConfig::new().with_amsgrad(true).with_weight_decay(0.1);
    let adam_w = FusedAdamW::new(adam_w);
    pending("adaptive", adam_w, Plan::scaled(adaptive()));
    pending("tolerant", nesterov(), Plan::scaled(tolerant()));
    // What the device cannot move, the host does, and waits.
    let other_factor = Plan::scaled(config().with_growth_factor(1.5));
    pending("growth by 1.5", nesterov(), other_factor);
    let log_max = Plan::scaled(config().with_schedule(Schedule::log_max()));
    pending("log max", nesterov(), log_max);
}

#[test]
fn averages() {
    let of = |ema, thawed| Plan {
        ema: Some(ema),
        thawed,
        ..Plan::clipped(&[(None, GlobalNorm(0.1))])
    };
    let ema = || EmaConfig::new().with_momentum(0.9);
    // The host has to know when.
    let overwritten = ema().with_overwrite_frequency(Some(3));
    pending("overwritten", adam(), of(overwritten, None));
    // What has no average begins with one.
    pending("thawed", adam(), of(ema(), Some(20)));
}

#[test]
fn clipping() {
    let (all, head) = (None, Some("head"));
    let bias = (Some("hidden.bias"), Norm(0.001));
    let groups = [(all, GlobalNorm(0.02)), (head, GlobalNorm(0.05)), bias];
    pending("groups", nesterov(), Plan::clipped(&groups));
    let decay = Some(WeightDecayConfig::new(0.01));
    let decayed = FusedAdam::new(AdamConfig::new().with_weight_decay(decay));
    let weight = (Some("head.weight"), GlobalNorm(f64::INFINITY));
    let each = [(all, Norm(0.03)), (Some("bias"), Value(0.004)), weight];
    pending("norms and values", decayed, Plan::clipped(&each));

    // Two groups of parameters are two calls of the kernel; the norm is of both.
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let biases = config.clone().with_amsgrad(true);
    let grouped = FusedAdamW::new(config);
    let grouped = grouped.with_group(ParamGroup::from_predicate("bias"), biases);
    let global = || Plan::clipped(&[(all, GlobalNorm(0.05))]);
    pending("optimizer's groups", grouped, global());
    // The optimizer's own clipping comes after that of the `ScaledOptimizer`, which waits for it.
    let own = Some(GradientClippingConfig::Norm(0.01));
    let own = FusedAdam::new(AdamConfig::new().with_grad_clipping(own));
    pending("the optimizer's own", own, global());
}

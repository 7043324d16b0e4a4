//! Steps that are waited for, that the device decides, and that are recorded: the same bits, whatever stands around the step. Drawn runs of them are
//! in `tests/oracle`.

use super::run::{Batch, Event, batch, config, has_graphs, loss};
use super::{adam, nesterov};
use crate::support::*;
use GradientClip::{GlobalNorm, Norm, Value};

/// What stands around a step.
#[derive(Default)]
pub struct Plan {
    /// Of all parameters, or of those of this name.
    pub clips: Vec<(Option<&'static str>, GradientClip)>,
    pub ema: Option<EmaConfig>,
    /// Whether no step is recorded.
    pub waits: bool,
}

impl Plan {
    pub fn clipped(clips: &[(Option<&'static str>, GradientClip)]) -> Self {
        let (clips, new) = (clips.to_vec(), Self::default());
        Self { clips, ..new }
    }

    fn waits(self) -> Self {
        let waits = true;
        Self { waits, ..self }
    }

    fn player<M: Module, O: ModuleOptim>(&self, optim: O, model: &M) -> Player<M, O> {
        let amp = f16_under(config());
        let mut player = Player::with(optim, model.clone(), &amp);
        for (group, clip) in &self.clips {
            player.optim = match group.map(ParamGroup::from_predicate) {
                None => player.optim.with_clipping(*clip),
                Some(group) => player.optim.with_group_clipping(group, *clip),
            };
        }
        if let Some(ema) = &self.ema {
            player.optim = player.optim.with_ema(ema.clone());
        }
        player
    }
}

/// Losses, what was found, records in the middle and at the end (with the loss scale, counters and averages), and the parameters.
pub fn same_bits<M: Module, B: CaptureInput, O: ModuleOptim + Clone>(
    (optim, plan): (O, Plan),
    model: &M,
    steps: usize,
    batch: impl Fn(usize) -> B,
    loss: impl Fn(&M, &MixedPrecision, B) -> Tensor<1>,
) -> StepCounters {
    let mut waited = plan.player(Waited(optim.clone()), model);
    let [mut own, other] = [(); 2].map(|()| plan.player(optim.clone(), model));
    let of = |model: &M, batch: B| loss(model, &other.amp, batch);
    let recorded = || CapturedStep::new(other.model.clone(), other.optim.clone(), of).unwrap();
    let mut recorded = (!plan.waits).then(recorded);
    let mut clipped = 0;
    for step in 0..steps {
        // As a schedule makes it.
        let lr = 1e-2 / (1.0 + step as f64 / 500.0);
        let of_waited = loss(&waited.model, &waited.amp, batch(step));
        waited.train(lr, of_waited.clone());
        let expected = of_waited.inner().into_data();
        let of_own = loss(&own.model, &own.amp, batch(step));
        own.train(lr, of_own.clone());
        assert_eq!(of_own.inner().into_data(), expected, "step {step}");
        if let Some(recorded) = &mut recorded {
            let found = recorded.step(lr, batch(step)).unwrap().into_data();
            assert_eq!(found, expected, "captured, step {step}");
        }
        let bytes = |record: AmpRecord| record.into_bytes().unwrap();
        if step == 45 || step + 1 == steps {
            let record = bytes(waited.optim.to_record());
            assert!(bytes(own.optim.to_record()) == record, "step {step}");
            let recorded = recorded.as_mut().map(|step| bytes(step.to_record()));
            assert!(recorded.is_none_or(|other| other == record), "step {step}");
        }
        if step % 10 == 0 {
            own.optim.synchronize().unwrap();
            let (scaler, status) = (waited.optim.scaler(), own.optim.scaler().last_status());
            assert_eq!(status, scaler.last_status(), "step {step}");
            let is_stepped = scaler.last_outcome() == Some(StepOutcome::Stepped);
            let found = status.unwrap().clipped();
            assert_eq!(found.is_some(), is_stepped && !plan.clips.is_empty());
            clipped += found.unwrap_or(0);
        }
    }
    assert!(parameters(&own.model) == parameters(&waited.model));
    if let Some(recorded) = recorded {
        assert_eq!(recorded.shapes() > 0, has_graphs());
        assert!(parameters(&recorded.model()) == parameters(&waited.model));
    }
    assert_eq!(clipped > 0, !plan.clips.is_empty());
    let updates = own.optim.ema().map(Ema::updates);
    let stepped = plan.ema.map(|_| waited.counters().stepped());
    assert_eq!(updates, stepped);
    waited.counters()
}

/// Batches of two shapes, of which some overflow at the begin, and in a row.
pub fn check<O: ModuleOptim + Clone>(optim: O, plan: Plan, steps: usize) {
    let batch = |step| {
        let event = match step {
            0 | 1 | 5 | 40..44 | 82 => Event::Overflow,
            7 => Event::Nan,
            _ => Event::Nothing,
        };
        batch(step, event, if step % 5 == 4 { 3 } else { 4 })
    };
    let loss = |net: &Net, amp: &MixedPrecision, batch: Batch| loss(amp, net, batch);
    let steps = if on_flex() { steps } else { steps.min(60) };
    let counters = same_bits((optim, plan), &Net::dense(&device()), steps, batch, loss);
    assert!(counters.skipped() > counters.bad_losses() && counters.bad_losses() > 0);
}

#[test]
fn averages() {
    // The host has to know when they take the place of the weights.
    for frequency in [None, Some(3)] {
        let ema = EmaConfig::new().with_momentum(0.9);
        let plan = Plan::clipped(&[(None, GlobalNorm(0.1))]).waits();
        let ema = Some(ema.with_overwrite_frequency(frequency));
        check(adam(), Plan { ema, ..plan }, 60);
    }
}

#[test]
fn clipping() {
    let (all, head) = (None, Some("head"));
    let bias = (Some("hidden.bias"), Norm(0.001));
    let groups = [(all, GlobalNorm(0.02)), (head, GlobalNorm(0.05)), bias];
    check(nesterov(), Plan::clipped(&groups).waits(), 60);
    let decay = Some(WeightDecayConfig::new(0.01));
    let decayed = FusedAdam::new(AdamConfig::new().with_weight_decay(decay));
    let weight = (Some("head.weight"), GlobalNorm(f64::INFINITY));
    let each = [(all, Norm(0.03)), (Some("bias"), Value(0.004)), weight];
    check(decayed, Plan::clipped(&each).waits(), 60);

    // Two groups of parameters are two calls of the kernel; the norm is of both.
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let biases = config.clone().with_amsgrad(true);
    let grouped = FusedAdamW::new(config);
    let grouped = grouped.with_group(ParamGroup::from_predicate("bias"), biases);
    let global = || Plan::clipped(&[(all, GlobalNorm(0.05))]).waits();
    check(grouped, global(), 60);
    // The optimizer's own clipping comes after that of the `ScaledOptimizer`, which waits for it.
    let own = Some(GradientClippingConfig::Norm(0.01));
    let own = FusedAdam::new(AdamConfig::new().with_grad_clipping(own));
    check(own, global(), 60);
}

#[derive(Module, Debug)]
struct Many {
    vectors: Vec<Param<Tensor<1>>>,
}

/// Some are stepped before all of them are known. The norm is of all.
#[test]
fn more_parameters_than_are_stepped_together() {
    let vector = |at: usize| {
        let values = Tensor::<1>::full([8], (at % 7) as f32 / 64.0, &device().autodiff());
        Param::from_tensor(values)
    };
    let many = Many {
        vectors: (0..560).map(vector).collect(),
    };
    let loss = |many: &Many, amp: &MixedPrecision, (x, factor): Batch| {
        let output = amp.autocast(x, |x| {
            let vectors = many.vectors.iter().map(Param::val).collect();
            x.matmul(Tensor::stack::<2>(vectors, 1))
        });
        (output - 0.5).square().mean() * factor
    };
    let batch = |step| {
        let event = match step {
            2 => Event::Overflow,
            _ => Event::Nothing,
        };
        batch(step, event, 4)
    };
    let grouped = FusedAdam::new(AdamConfig::new());
    let tens = AdamConfig::new().with_amsgrad(true);
    let grouped = grouped.with_group(ParamGroup::from_predicate("vectors.10"), tens);
    let plan = Plan::clipped(&[(None, GlobalNorm(1e-3))]);
    let counters = same_bits((grouped, plan), &many, 4, batch, loss);
    assert_eq!(counters.skipped(), 1);
}

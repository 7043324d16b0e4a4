//! Steps that are waited for, that the device decides, and that are recorded: the same bits, whatever stands around the step. Drawn runs of them are
//! in `tests/oracle`.

use super::run::{Batch, Event, batch, config, has_graphs, loss};
use crate::support::*;

/// Rules of all parameters, or of those of this name.
type Clips = [(Option<&'static str>, GradientClip)];

fn player<M: Module, O: ModuleOptim>(optim: O, clips: &Clips, model: &M) -> Player<M, O> {
    let mut player = Player::with(optim, model.clone(), &f16_under(config()));
    for (group, clip) in clips {
        player.optim = match group.map(ParamGroup::from_predicate) {
            None => player.optim.with_clipping(*clip),
            Some(group) => player.optim.with_group_clipping(group, *clip),
        };
    }
    player
}

/// Losses, what was found, records in the middle and at the end (with the loss scale and counters), and the parameters.
pub fn same_bits<M: Module, B: CaptureInput, O: ModuleOptim + Clone>(
    (optim, clips): (O, &Clips),
    model: &M,
    steps: usize,
    batch: impl Fn(usize) -> B,
    loss: impl Fn(&M, &MixedPrecision, B) -> Tensor<1>,
) -> StepCounters {
    let mut waited = player(Waited(optim.clone()), clips, model);
    let [mut own, other] = [(); 2].map(|()| player(optim.clone(), clips, model));
    let of = |model: &M, batch: B| loss(model, &other.amp, batch);
    let mut recorded = CapturedStep::new(other.model.clone(), other.optim.clone(), of).unwrap();
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
        let found = recorded.step(lr, batch(step)).unwrap().into_data();
        assert_eq!(found, expected, "captured, step {step}");
        let bytes = |record: AmpRecord| record.into_bytes().unwrap();
        if step == 45 || step + 1 == steps {
            let record = bytes(waited.optim.to_record());
            assert!(bytes(own.optim.to_record()) == record, "step {step}");
            assert!(
                bytes(recorded.to_record()) == record,
                "captured, step {step}"
            );
        }
        if step % 10 == 0 {
            own.optim.synchronize().unwrap();
            let (scaler, status) = (waited.optim.scaler(), own.optim.scaler().last_status());
            assert_eq!(status, scaler.last_status(), "step {step}");
            let is_stepped = scaler.last_outcome() == Some(StepOutcome::Stepped);
            let found = status.unwrap().clipped();
            assert_eq!(found.is_some(), is_stepped && !clips.is_empty());
            clipped += found.unwrap_or(0);
        }
    }
    assert!(parameters(&own.model) == parameters(&waited.model));
    assert_eq!(recorded.shapes() > 0, has_graphs());
    assert!(parameters(&recorded.model()) == parameters(&waited.model));
    assert_eq!(clipped > 0, !clips.is_empty());
    waited.counters()
}

/// Batches of two shapes, of which some overflow at the begin, and in a row.
pub fn check<O: ModuleOptim + Clone>(optim: O, clips: &Clips, steps: usize) {
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
    let counters = same_bits((optim, clips), &Net::dense(&device()), steps, batch, loss);
    assert!(counters.skipped() > counters.bad_losses() && counters.bad_losses() > 0);
}

#[derive(Module, Debug)]
struct Many {
    vectors: Vec<Param<Tensor<1>>>,
}

/// Some are stepped before all of them are known, and two groups of parameters are two calls of the kernel. The norm is of all.
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
    let clips = [(None, GradientClip::GlobalNorm(1e-3))];
    let counters = same_bits((grouped, &clips), &many, 4, batch, loss);
    assert_eq!(counters.skipped(), 1);
}

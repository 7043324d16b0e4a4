//! Steps that are waited for, that the device decides, and that are recorded: the same bits, whatever stands around the step. Drawn runs of them are
//! in `tests/oracle`.

use super::run::{Batch, OVERFLOW, batch, has_graphs, loss};
use crate::support::*;

/// Rules of all parameters, or of those of this name.
type Clips = [(Option<&'static str>, GradientClip)];

fn player<M: Module, O: ModuleOptim>(optim: O, clips: &Clips, model: &M) -> Player<M, O> {
    let config = GradScalerConfig::new().with_growth_interval(50);
    let mut player = Player::with(optim, model.clone(), &f16_under(config));
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
        let of_own = loss(&own.model, &own.amp, batch(step));
        own.train(lr, of_own.clone());
        let of_recorded = recorded.step(lr, batch(step)).unwrap();
        let losses = [of_waited.inner(), of_own.inner(), of_recorded].map(Tensor::into_data);
        let expected = &losses[0];
        assert!(losses.iter().all(|loss| loss == expected), "{step}");
        if step == 45 || step + 1 == steps {
            let own = own.optim.to_record();
            let records = [waited.optim.to_record(), own, recorded.to_record()];
            let [waited, own, recorded] = records.map(|record| record.into_bytes().unwrap());
            assert!(own == waited && recorded == waited, "step {step}");
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
        let factor = match step {
            0 | 1 | 5 | 40..44 | 82 => OVERFLOW,
            7 => f32::NAN,
            _ => 1.0,
        };
        batch(step, factor, if step % 5 == 4 { 3 } else { 4 })
    };
    let steps = if on_flex() { steps } else { steps.min(60) };
    let counters = same_bits((optim, clips), &Net::new(&device()), steps, batch, loss);
    assert!(counters.skipped() > counters.bad_losses() && counters.bad_losses() > 0);
}

/// Some are stepped before all of them are known, and two groups of parameters are two calls of the kernel. The norm is of all.
#[test]
fn more_parameters_than_are_stepped_together() {
    type Many = Vec<Param<Tensor<1>>>;

    let values = |at: usize| Tensor::<1>::full([8], (at % 7) as f32 / 64.0, &device());
    let many: Many = (0..560).map(|at| Param::from_tensor(values(at))).collect();
    let loss = |many: &Many, amp: &MixedPrecision, (x, factor): Batch| {
        let output = amp.autocast(x, |x| {
            let vectors = many.iter().map(Param::val).collect();
            x.matmul(Tensor::stack::<2>(vectors, 1))
        });
        (output - 0.5).square().mean() * factor
    };
    let batch = |step| batch(step, if step == 2 { OVERFLOW } else { 1.0 }, 4);
    let tens = AdamConfig::new().with_amsgrad(true);
    let grouped = super::adam().with_group(ParamGroup::from_predicate("10"), tens);
    let clips = [(None, GradientClip::GlobalNorm(1e-3))];
    let counters = same_bits((grouped, &clips), &many, 4, batch, loss);
    assert_eq!(counters.skipped(), 1);
}

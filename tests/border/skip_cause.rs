//! The cause of a skip: a loss scale that was too high is lowered, one that is not the cause stays.

use std::collections::VecDeque;

use crate::support::*;

/// What a step has done: skipped, the scale after it, and the bad losses so far.
type Outcome = (bool, f64, u64);

const KEPT: f64 = 1024.0;
const FINE: Outcome = (false, KEPT, 0);
const LOWERED: Outcome = (true, KEPT / 2.0, 0);
const BAD: Outcome = (true, KEPT, 1);

type Run = Player<Gain>;

fn run(amp: MixedPrecision) -> Run {
    Player::new(Gain::new(&[2.0, 2.0]), &amp)
}

const ONES: [f32; 2] = [1.0; 2];
/// 40000 is in f16, twice that is not.
const LARGE: [f32; 2] = [1.0, 4e4];

/// The outputs for this input: twice as much, f32.
fn forward(run: &Run, input: [f32; 2]) -> Tensor<1> {
    run.amp.autocast(vector(&input), |x| run.model.forward(x))
}

fn ones(run: &Run) -> Tensor<1> {
    forward(run, ONES)
}

fn outcome(run: &mut Run, grads: GradientsParams) -> Outcome {
    let before = numbers(&run.model);
    let skipped = run.step(0.01, grads);
    assert_eq!(skipped, numbers(&run.model) == before);
    (skipped, run.scale(), run.counters().bad_losses())
}

fn step_on(run: &mut Run, loss: impl Fn(&Run) -> Tensor<1>) -> Outcome {
    outcome(run, run.gradients(loss(run)))
}

/// With a scaler, whose iteration the error of gradients that were dropped ends.
#[test]
fn an_iteration_ends_with_a_bad_loss_that_was_dropped() {
    let run = run(f16_under(
        at_scale(KEPT).with_max_consecutive_skips(Some(0)),
    ));
    let (mut sgd, mut scaler) = (SgdConfig::new().init(), GradScaler::from(&run.amp));
    let tested = |scaler: &GradScaler, loss: Loss| {
        let grads = scaler.backward(loss(ones(&run)), &run.model);
        scaler.unscale(grads, &run.model).unwrap()
    };
    for _ in 0..2 {
        let grads = tested(&scaler, flat);
        scaler.step(&mut sgd, 0.01, run.model.clone(), grads);
        drop(tested(&scaler, nan));
        let error = scaler.update().unwrap_err();
        is_error(&error, "LossNotFinite", ["the loss"]);
    }
}

/// The loss of an output.
type Loss = fn(Tensor<1>) -> Tensor<1>;

/// The loss of a batch whose target is missing.
fn nan(output: Tensor<1>) -> Tensor<1> {
    (output - vector(&[0.0, f32::NAN])).square().mean()
}

/// A gradient that f16 cannot hold, times 2^10 and more.
fn steep(output: Tensor<1>) -> Tensor<1> {
    output.sum() * two(10)
}

fn flat(output: Tensor<1>) -> Tensor<1> {
    output.sum() * two(-10)
}

/// A mask of minus infinity is not caused by the forward pass: its gradients are finite.
fn masked(run: &Run) -> Tensor<1> {
    let output = run.amp.autocast(vector(&ONES), |x| {
        let mask = Tensor::<1, Bool>::from_bool([false, true], &device());
        run.model.forward(x).mask_fill(mask, f32::NEG_INFINITY)
    });
    output.slice(0..1)
}

/// Of two outputs of one scope.
fn exits(run: &Run, first: Loss, second: Loss) -> Tensor<1> {
    let (a, b) = run.amp.autocast(vector(&ONES), |x| {
        let y = run.model.forward(x);
        (y.clone(), y * 2.0)
    });
    first(a) + second(b)
}

/// Scope, head in f32, scope: what overflows in the second arrives at the exit of the first.
fn chain(run: &Run, factor: f64, input: [f32; 2]) -> Tensor<1> {
    let hidden = forward(run, input).square();
    (run.amp).autocast(hidden, |x| run.model.forward(x) * factor)
}

/// The output of a chain that is infinite: the model is the cause.
fn infinite(run: &Run) -> Tensor<1> {
    flat(forward(run, LARGE).square())
}

/// Two forward passes in one loss: a critic's of the real and of the false.
fn beside(run: &Run, first: Loss, second: Loss) -> Tensor<1> {
    first(ones(run)) + second(ones(run))
}

#[test]
fn whose_fault_it_is() {
    type Case = (&'static str, fn(&Run) -> Tensor<1>);
    let fine: [Case; 5] = [
        ("infinite by design", |run| flat(masked(run))),
        // Below the first value that rounds to infinity, and from it on.
        ("the last", |run| ones(run).sum() * (65519.0 / KEPT)),
        ("two exits", |run| exits(run, flat, flat)),
        ("a chain", |run| flat(chain(run, 1.0, ONES))),
        ("side by side", |run| beside(run, flat, flat)),
    ];
    let lowered: [Case; 10] = [
        ("the first one", |run| ones(run).sum() * (65520.0 / KEPT)),
        ("where the gradient leaves f32", |run| steep(ones(run))),
        ("deep inside", |run| {
            let deep = |x| run.model.forward(x) * two(9) * two(-9) * two(9);
            run.amp.autocast(vector(&ONES), deep).sum()
        }),
        ("masked, too steep", |run| steep(masked(run))),
        ("the second exit steep", |run| exits(run, flat, steep)),
        ("the first exit steep", |run| exits(run, steep, flat)),
        ("a steep chain", |run| steep(chain(run, 1.0, ONES))),
        // 2^-10 times 2^10 fits; what comes before is multiplied by 2^16 more.
        ("before it", |run| flat(chain(run, two(15) * 1.5, ONES))),
        ("the first one steep", |run| beside(run, steep, flat)),
        ("the second one steep", |run| beside(run, flat, steep)),
    ];
    let bad: [Case; 8] = [
        ("in a scope without a scale", |run| {
            let forward = |x| run.amp.autocast(x, |x| run.model.forward(x));
            nan(MixedPrecision::f32().autocast(vector(&ONES), forward))
        }),
        ("the second exit bad", |run| exits(run, flat, nan)),
        ("the first exit bad", |run| exits(run, nan, flat)),
        ("a chain, bad", |run| nan(chain(run, 1.0, ONES))),
        ("infinite output", |run| flat(chain(run, 1.0, LARGE))),
        ("both bad", |run| beside(run, nan, nan)),
        ("second infinite", |run| flat(ones(run)) + infinite(run)),
        ("first infinite", |run| infinite(run) + flat(ones(run))),
    ];
    for (expected, cases) in [(FINE, &fine[..]), (LOWERED, &lowered), (BAD, &bad)] {
        for (what, loss) in cases {
            assert_eq!(step_on(&mut run(f16(KEPT)), loss), expected, "{what}");
        }
    }
}

#[test]
fn thirty_bad_batches_leave_the_scale() {
    let config = at_scale(KEPT).with_max_consecutive_skips(Some(29));
    type Bad = fn(&Run) -> Tensor<1>;
    let [loss, output]: [Bad; 2] = [|run| nan(ones(run)), infinite];
    for (bad, output_finite, message) in [
        (loss, true, "the loss, or its gradient, is infinite or NaN"),
        (output, false, "the model's output is infinite or NaN"),
    ] {
        let mut run = run(f16_under(config));
        // A finite step ends the row.
        for step in 1..60 {
            let (expected, loss): (_, Bad) = match step {
                30 => ((false, KEPT, 29), |run| flat(ones(run))),
                _ => ((true, KEPT, step - u64::from(step > 30)), bad),
            };
            assert_eq!(step_on(&mut run, loss), expected);
        }
        let error = run.try_step(0.01, run.gradients(bad(&run))).unwrap_err();
        let expected = format!("LossNotFinite {{ skips: 30, output_finite: {output_finite}, ");
        is_error(&error, &expected, [message]);
        let in_f32 = error.to_string().contains("run that layer `in_f32`");
        assert_eq!(in_f32, !output_finite);
        assert_eq!((run.scale(), run.counters().skipped()), (KEPT, 59));
    }
}

/// From the third in a row on.
#[test]
fn skips_in_a_row_are_warned_of() {
    let mut run = run(f16(3.0 * two(20)));
    let mut warned = |loss: Loss, steps: usize| {
        let mut step = || step_on(&mut run, |run| loss(ones(run)));
        captured(Level::Warn, || (0..steps).for_each(|_| _ = step()))
    };
    let wording = [(18, 3), (17, 4)].map(|(exponent, skips)| {
        let scale = 3.0 * two(exponent);
        format!("{skips} overflows in a row at loss scale {scale}")
    });
    assert_eq!(warned(steep, 4), wording);
    // A bad loss names its cause.
    let bad = warned(nan, 3).concat();
    says(&bad, ["of the loss is infinite or NaN, 3 in a row"]);
}

/// In Burn's own accumulator, which knows nothing of scales: the sum shows what one of four has done, whether or not all
/// forward passes come first.
#[test]
fn micro_batches_in_burns_accumulator() {
    for (odd, expected) in [(flat as Loss, FINE), (steep, LOWERED), (nan, BAD)] {
        for (at, forward_first) in (0..4).flat_map(|at| [(at, false), (at, true)]) {
            let mut run = run(f16(KEPT));
            let mut sum = GradientsAccumulator::new();
            let loss = |micro| if micro == at { odd } else { flat }(ones(&run));
            let count = if forward_first { 4 } else { 0 };
            let mut queued: VecDeque<Tensor<1>> = (0..count).map(loss).collect();
            for micro in 0..4 {
                let loss = queued.pop_front().unwrap_or_else(|| loss(micro));
                sum.accumulate(&run.model, run.gradients(loss));
            }
            let at = format!("batch {at}, {forward_first}");
            assert_eq!(outcome(&mut run, sum.grads()), expected, "{at}");
            // And the next window is a fresh one.
            let found = step_on(&mut run, |run| flat(ones(run)));
            assert_eq!(found, (false, expected.1, expected.2), "{at}");
        }
    }
}

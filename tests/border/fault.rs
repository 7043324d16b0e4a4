//! Whose fault a skip is: a loss scale that was too high is lowered, one that is not to blame stays.

use burn::{
    module::Module,
    optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Bool, Tensor},
};
use burn_amp::{
    AccumulationConfig, AmpError, GradScalerConfig, MixedPrecision, ScaledOptimizer, StepOutcome,
};

use crate::support::{Gain, device, f16, logs, parameters, two, vector};

/// A model, its optimizer, and the loss scale between them.
struct Run {
    amp: MixedPrecision,
    optim: ScaledOptimizer<ModuleOptimizer>,
    gain: Gain,
}

/// What a step has done: skipped, the scale after it, and the bad losses so far.
type Verdict = (bool, f64, u64);

impl Run {
    fn new(amp: MixedPrecision) -> Self {
        Self {
            optim: ScaledOptimizer::new(SgdConfig::new().init(), &amp),
            gain: Gain::new(&[2.0, 2.0]).apply_reparameterization(amp.clone()),
            amp,
        }
    }

    /// The outputs for this input: twice as much, f32.
    fn forward(&self, input: Tensor<1>) -> Tensor<1> {
        self.amp.autocast(input, |x| self.gain.forward(x))
    }

    fn ones(&self) -> Tensor<1> {
        self.forward(vector(&[1.0, 1.0]))
    }

    fn gradients(&self, loss: Tensor<1>) -> GradientsParams {
        GradientsParams::from_grads(loss.backward(), &self.gain)
    }

    fn step(&mut self, grads: GradientsParams) -> Verdict {
        let before = parameters(&self.gain);
        self.gain = self.optim.step(0.01, self.gain.clone(), grads);
        let skipped = self.optim.scaler().last_outcome() == Some(StepOutcome::Skipped);
        assert_eq!(skipped, parameters(&self.gain) == before);
        let bad = self.optim.scaler().counters().bad_losses();
        (skipped, self.amp.loss_scale().into(), bad)
    }

    fn step_on(&mut self, loss: Tensor<1>) -> Verdict {
        self.step(self.gradients(loss))
    }
}

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

const KEPT: f64 = 1024.0;
const LOWERED: f64 = 512.0;

fn run() -> Run {
    Run::new(f16(KEPT))
}

#[test]
fn thirty_bad_batches_leave_the_scale() {
    let config = GradScalerConfig::new().with_init_scale(KEPT);
    let config = config.with_max_consecutive_skips(Some(29));
    type Bad = fn(&Run) -> Tensor<1>;
    let loss: Bad = |run| nan(run.ones());
    // 40000 is in f16, twice that is not.
    let output: Bad = |run| flat(run.forward(vector(&[1.0, 4e4])).square());
    for (bad, finite, message) in [
        (loss, true, "the loss, or its gradient, is infinite or NaN"),
        (output, false, "the model's output is infinite or NaN"),
    ] {
        let mut run = Run::new(MixedPrecision::f16().with_scaler(config).unwrap());
        for step in 1..30 {
            let loss = bad(&run);
            assert_eq!(run.step_on(loss), (true, KEPT, step));
        }
        // A clean step ends the row.
        let loss = flat(run.ones());
        assert_eq!(run.step_on(loss), (false, KEPT, 29));
        for step in 1..30 {
            let loss = bad(&run);
            assert_eq!(run.step_on(loss), (true, KEPT, 29 + step));
        }
        let grads = run.gradients(bad(&run));
        let error = run.optim.try_step(0.01, run.gain.clone(), grads);
        let error = error.map(drop).unwrap_err().error;
        let expected = AmpError::LossNotFinite {
            skips: 30,
            output_finite: finite,
        };
        assert_eq!(error, expected);
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(f64::from(run.amp.loss_scale()), KEPT);
        assert_eq!(run.optim.scaler().counters().skipped(), 59);
    }
}

/// Where the gradient leaves f32, or deep inside.
#[test]
fn a_scale_that_is_too_high_is_lowered() {
    let mut run = run();
    let loss = steep(run.ones());
    assert_eq!(run.step_on(loss), (true, LOWERED, 0));
    let mut run = Run::new(f16(KEPT));
    let deep = |x: Tensor<1>| run.gain.forward(x) * two(9) * two(-9);
    let output = run.amp.autocast(vector(&[1.0, 1.0]), |x| deep(x) * two(9));
    let loss = output.sum();
    assert_eq!(run.step_on(loss), (true, LOWERED, 0));
}

/// A mask of minus infinity is no fault of the forward pass: its gradients are finite.
#[test]
fn an_output_that_is_infinite_by_design() {
    let masked = |run: &Run| {
        run.amp.autocast(vector(&[1.0, 1.0]), |x| {
            let mask = Tensor::<1, Bool>::from_bool([false, true], &device());
            run.gain.forward(x).mask_fill(mask, f32::NEG_INFINITY)
        })
    };
    for (weight, expected) in [(two(-10), (false, KEPT, 0)), (two(10), (true, LOWERED, 0))] {
        let mut run = run();
        let loss = masked(&run).slice(0..1).sum() * weight;
        assert_eq!(run.step_on(loss), expected);
    }
}

/// From the third in a row on. At scales that no other test has: the lines are those of all tests.
#[test]
fn skips_in_a_row_are_warned_of() {
    let mut run = Run::new(f16(3.0 * two(20)));
    let lines = logs("overflows in a row", || {
        for _ in 0..4 {
            let loss = steep(run.ones());
            run.step_on(loss);
        }
    });
    let told = [20, 19, 18, 17].map(|exponent| {
        let end = format!(" overflows in a row at loss scale {}", 3.0 * two(exponent));
        let skips = lines.iter().filter_map(|line| line.strip_suffix(&end));
        skips.collect::<Vec<_>>()
    });
    assert_eq!(told, [vec![], vec![], vec!["WARN: 3"], vec!["WARN: 4"]]);
    // A bad loss says whose fault it is, each time.
    let said =
        |action: &mut dyn FnMut()| logs("of the loss is infinite or NaN, 3 in a row", action).len();
    let before = said(&mut || ());
    let after = said(&mut || {
        for _ in 0..3 {
            let loss = nan(run.ones());
            run.step_on(loss);
        }
    });
    assert!(after > before);
}

/// Below the first value that rounds to infinity, and from it on.
#[test]
fn the_first_gradient_that_overflows() {
    for (gradient, skipped) in [(65519.0, false), (65520.0, true)] {
        let mut run = run();
        let loss = run.ones().sum() * (gradient / KEPT);
        let scale = if skipped { LOWERED } else { KEPT };
        assert_eq!(run.step_on(loss), (skipped, scale, 0));
    }
}

#[test]
fn two_exits() {
    let exits = |run: &Run| {
        run.amp.autocast(vector(&[1.0, 1.0]), |x| {
            let y = run.gain.forward(x);
            (y.clone(), y * 2.0)
        })
    };
    type Loss = fn(Tensor<1>) -> Tensor<1>;
    let losses: [(Loss, Loss, Verdict); 5] = [
        (flat, flat, (false, KEPT, 0)),
        (flat, nan, (true, KEPT, 1)),
        (nan, flat, (true, KEPT, 1)),
        (flat, steep, (true, LOWERED, 0)),
        (steep, flat, (true, LOWERED, 0)),
    ];
    for (first, second, expected) in losses {
        let mut run = run();
        let (a, b) = exits(&run);
        let loss = first(a) + second(b);
        assert_eq!(run.step_on(loss), expected);
    }
}

/// In Burn's own accumulator, which knows nothing of scales: the sum shows what one of four has done.
#[test]
fn micro_batches_in_burns_accumulator() {
    type Loss = fn(Tensor<1>) -> Tensor<1>;
    for (odd, expected) in [
        (flat as Loss, (false, KEPT, 0)),
        (steep, (true, LOWERED, 0)),
        (nan, (true, KEPT, 1)),
    ] {
        for at in 0..4 {
            let mut run = run();
            let mut sum = GradientsAccumulator::new();
            for micro in 0..4 {
                let loss = if micro == at { odd } else { flat };
                sum.accumulate(&run.gain, run.gradients(loss(run.ones())));
            }
            assert_eq!(run.step(sum.grads()), expected);
            // And the next window is a fresh one.
            let loss = flat(run.ones());
            assert_eq!(run.step_on(loss), (false, expected.1, expected.2));
        }
    }
}

/// All forward passes first.
#[test]
fn two_micro_batches_one_of_them_bad() {
    for bad in 0..2 {
        let mut run = run();
        let losses = [0, 1].map(|at| (if at == bad { nan } else { flat })(run.ones()));
        let mut sum = GradientsAccumulator::new();
        for loss in losses {
            sum.accumulate(&run.gain, run.gradients(loss));
        }
        assert_eq!(run.step(sum.grads()), (true, KEPT, 1), "{bad}");
    }
}

/// Our window: skipped as a whole, or without the micro-batch that is bad.
#[test]
fn micro_batches_in_a_window() {
    let window = |rule| {
        let mut run = run();
        let config = AccumulationConfig::new(2).with_skip_micro_batch(rule);
        run.optim = ScaledOptimizer::new(SgdConfig::new().init(), &run.amp);
        run.optim = run.optim.with_accumulation(config).unwrap();
        for loss in [nan, flat] {
            let grads = run.gradients(loss(run.ones()));
            run.gain = run.optim.step(0.01, run.gain.clone(), grads);
        }
        let counters = *run.optim.scaler().counters();
        assert_eq!(f64::from(run.amp.loss_scale()), KEPT);
        assert_eq!(counters.bad_losses(), 1);
        (counters.skipped(), counters.dropped())
    };
    assert_eq!(window(false), (1, 0));
    assert_eq!(window(true), (0, 1));
}

/// Scope, head in f32, scope: what overflows in the second arrives at the exit of the first.
#[test]
fn a_chain_of_scopes() {
    let chain = |run: &Run, factor: f64, x: &[f32]| {
        let hidden = run.forward(vector(x)).square();
        run.amp.autocast(hidden, |x| run.gain.forward(x) * factor)
    };
    type Loss = fn(Tensor<1>) -> Tensor<1>;
    let ones: &[f32] = &[1.0, 1.0];
    let cases: [(Loss, f64, &[f32], Verdict); 5] = [
        (flat, 1.0, ones, (false, KEPT, 0)),
        (steep, 1.0, ones, (true, LOWERED, 0)),
        // 2^-10 times 2^10 fits; what comes before is multiplied by 2^16 more.
        (flat, two(15) * 1.5, ones, (true, LOWERED, 0)),
        (nan, 1.0, ones, (true, KEPT, 1)),
        // The first scope's output is infinite.
        (flat, 1.0, &[1.0, 4e4], (true, KEPT, 1)),
    ];
    for (loss, factor, input, expected) in cases {
        let mut run = run();
        let loss = loss(chain(&run, factor, input));
        assert_eq!(run.step_on(loss), expected, "factor {factor}, {input:?}");
    }
}

/// Two forward passes in one loss: a critic's of the real and of the false.
#[test]
fn scopes_side_by_side() {
    let outputs = |run: &Run, x: [[f32; 2]; 2]| x.map(|x| run.forward(vector(&x)));
    type Loss = fn(Tensor<1>) -> Tensor<1>;
    let fine = [1.0, 1.0];
    let cases: [([Loss; 2], [[f32; 2]; 2], Verdict); 6] = [
        ([flat, flat], [fine; 2], (false, KEPT, 0)),
        ([steep, flat], [fine; 2], (true, LOWERED, 0)),
        ([flat, steep], [fine; 2], (true, LOWERED, 0)),
        ([nan, nan], [fine; 2], (true, KEPT, 1)),
        (
            [flat, |x| flat(x.square())],
            [fine, [1.0, 4e4]],
            (true, KEPT, 1),
        ),
        (
            [|x| flat(x.square()), flat],
            [[1.0, 4e4], fine],
            (true, KEPT, 1),
        ),
    ];
    for (index, (losses, input, expected)) in cases.into_iter().enumerate() {
        let mut run = run();
        let [a, b] = outputs(&run, input);
        let loss = losses[0](a) + losses[1](b);
        assert_eq!(run.step_on(loss), expected, "case {index}");
    }
}

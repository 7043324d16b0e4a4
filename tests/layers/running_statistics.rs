//! BatchNorm's running statistics, in which Burn has surprises of its own.

use super::support::*;

fn mean_in(record: ModuleRecord) -> Values {
    let mut pack = pack(record.into_bytes().unwrap());
    pack.tensors.remove("running_mean").unwrap().1
}

fn norm(amp: &MixedPrecision) -> BatchNorm {
    let norm = BatchNormConfig::new(2).init(&flex());
    norm.apply_reparameterization(amp.clone())
}

fn forward(norm: &BatchNorm, amp: &MixedPrecision, input: Tensor<3>) -> Tensor<3> {
    amp.autocast(input, |x| in_f32(x, |x| norm.forward(x)))
}

fn input() -> Tensor<3> {
    tensor([4, 2, 3], &flex())
}

/// They move, in f32, whatever the model computes in.
#[test]
fn they_follow_the_f32_model() {
    let [half, full] = [MixedPrecision::f16(), MixedPrecision::f32()].map(|amp| {
        let norm = norm(&amp);
        for _ in 0..5 {
            forward(&norm, &amp, input());
        }
        let mean = norm.running_mean.value_sync();
        assert_eq!(mean.dtype(), DType::F32);
        values(mean)
    });
    for (half, full) in half.iter().zip(&full) {
        assert!((half - full).abs() < 1e-3, "{half} {full}");
        assert!(full.abs() > 1e-3, "{full}");
    }
}

/// Burn's record of a BatchNorm in training lacks the last update, unless `valid` was called before. If this fails,
/// Burn has fixed it, and the warning in the documentation can go.
#[test]
fn a_record_lacks_the_last_update_before_valid() {
    let amp = MixedPrecision::f16();
    let norm = norm(&amp);
    forward(&norm, &amp, input());
    let early = mean_in(norm.clone().into_record());
    let inference = norm.valid();
    let late = mean_in(norm.into_record());
    assert_ne!(early, late);
    assert_eq!(late, mean_in(inference.into_record()));
}

/// After a step, a record has it.
#[test]
fn a_record_has_the_last_update_after_a_step() {
    let mut run = Loop::after(0);
    for _ in 0..2 {
        run.step(GOOD);
        let early = mean_in(run.norms[0].clone().into_record());
        run.norms.valid();
        assert_eq!(early, mean_in(run.norms[0].clone().into_record()));
    }
}

/// With `valid` called before the save, a resumed run has the same ones, to the last bit.
#[test]
fn a_resumed_run_has_the_same() {
    let amp = MixedPrecision::f16();
    let train = |norm: &BatchNorm| {
        for _ in 0..3 {
            forward(norm, &amp, input());
        }
        norm.valid();
    };
    let straight = norm(&amp);
    train(&straight);
    let bytes = straight.clone().into_record().into_bytes().unwrap();
    train(&straight);
    let resumed = norm(&amp).load_record(ModuleRecord::from_bytes(bytes).unwrap());
    train(&resumed);
    assert_eq!(
        mean_in(resumed.into_record()),
        mean_in(straight.into_record())
    );
}

struct Loop {
    amp: MixedPrecision,
    /// Two layers, of which the second computes on an input of its own.
    norms: [BatchNorm; 2],
    optim: ScaledOptimizer,
}

/// What each channel of the first layer's input is multiplied by.
type Factors = [f32; 2];

const GOOD: Factors = [1.0, 1.0];
/// Infinite in f16.
const OVERFLOW: Factors = [1e6, 1e6];

impl Loop {
    fn with(amp: &MixedPrecision) -> Self {
        let norms = [(); 2].map(|()| norm(amp));
        Self {
            amp: amp.clone(),
            norms,
            optim: ScaledOptimizer::new(SgdConfig::new().init(), amp),
        }
    }

    fn gradients(&self, factors: Factors) -> GradientsParams {
        let factors = Tensor::<1>::from_data(factors, &flex()).reshape([1, 2, 1]);
        let first = forward(&self.norms[0], &self.amp, input() * factors);
        let second = forward(&self.norms[1], &self.amp, input());
        let loss = (first + second).square().mean();
        GradientsParams::from_grads(loss.backward(), &self.norms)
    }

    /// After so many steps in which nothing overflows.
    fn after(steps: usize) -> Self {
        let mut run = Self::with(&MixedPrecision::f16());
        for _ in 0..steps {
            assert!(!run.step(GOOD));
        }
        run
    }

    /// Whether it was skipped.
    fn step(&mut self, factors: Factors) -> bool {
        let grads = self.gradients(factors);
        let norms = self.norms.clone();
        self.norms = self.optim.step(0.1, norms, grads);
        self.optim.scaler().last_outcome() == Some(StepOutcome::Skipped)
    }

    /// Mean and variance of the first layer.
    fn first(&self) -> [Vec<f32>; 2] {
        statistics(&self.norms[0])
    }
}

fn statistics(norm: &BatchNorm) -> [Vec<f32>; 2] {
    [&norm.running_mean, &norm.running_var].map(|statistic| values(statistic.value_sync()))
}

/// Those that are not finite are those of the last good step, or those with which the layer came; those of the other layer have
/// moved, and stay so.
#[test]
fn an_overflow_in_the_forward_pass_leaves_the_last_good_ones() {
    for steps in [0, 3] {
        let mut run = Loop::after(steps);
        let (good, good_second) = (run.first(), statistics(&run.norms[1]));
        let other = run.norms[1].clone();
        for _ in 0..2 {
            assert!(run.step(OVERFLOW));
        }
        let second = statistics(&run.norms[1]);
        assert_eq!(run.first(), good, "{steps}");
        assert!(second[0] != good_second[0] && second[1] != good_second[1]);
        // Clones share them.
        assert_eq!(statistics(&other), second);

        // The run goes on as if there had been no overflow.
        run.step(GOOD);
        assert_eq!(run.first(), Loop::after(steps + 1).first());
    }
}

/// Channel by channel.
#[test]
fn a_channel_that_does_not_overflow_keeps_what_it_has_seen() {
    let (good, seen) = (Loop::after(1).first(), Loop::after(2).first());
    let mut run = Loop::after(1);
    assert!(run.step([1e6, 1.0]));
    assert_eq!(
        run.first(),
        [0, 1].map(|index| vec![good[index][0], seen[index][1]])
    );
}

/// The step of a window is skipped for one of its micro-batches, the others having moved the statistics. A micro-batch that is
/// dropped takes what it did with it; the others of the window stay.
#[test]
fn windows_keep_what_was_before_the_overflow() {
    let skipped = [3, 4, 5].map(|bad| (AccumulationConfig::new(3), bad, 6, [1, 1, 0], 3));
    let dropped = AccumulationConfig::new(2).with_skip_micro_batch(true);
    for (window, bad, micro_batches, expected, good) in
        skipped.into_iter().chain([(dropped, 1, 3, [1, 0, 1], 2)])
    {
        let mut run = Loop::after(0);
        run.optim = run.optim.with_accumulation(window);
        for index in 0..micro_batches {
            run.step(if index == bad { OVERFLOW } else { GOOD });
        }
        let counters = run.optim.scaler().counters();
        let found = [counters.stepped(), counters.skipped(), counters.dropped()];
        assert_eq!(found, expected, "{bad}");
        assert_eq!(run.first(), Loop::after(good).first(), "{bad}");
    }
}

/// The forward pass of one optimizer's loss may go through the module of another, as a generator's does.
#[test]
fn another_optimizers_overflow_is_mended_by_the_next_step() {
    let amp = MixedPrecision::f16();
    let (mut critic, mut generator) = (Loop::with(&amp), Loop::with(&amp));
    critic.step(GOOD);
    let good = critic.first();
    // Through the critic's layer, for the generator's loss.
    let output = forward(&critic.norms[0], &amp, input() * 1e6);
    let own = forward(&generator.norms[0], &amp, input());
    let grads = (output * own).mean().backward();
    let grads = GradientsParams::from_grads(grads, &generator.norms);
    generator.norms = generator.optim.step(0.1, generator.norms, grads);
    assert_eq!(generator.optim.scaler().counters().skipped(), 1);
    assert!(!critic.first()[0][0].is_finite());
    critic.step(GOOD);
    assert_eq!(critic.first(), good);
}

/// Gradients that a program throws away have had a forward pass, too.
#[test]
fn an_overflow_that_is_discarded_is_mended_by_the_next_step() {
    let mut run = Loop::after(1);
    let good = run.first();
    let scaler = at_scale(1.0).init().unwrap();
    let grads = scaled_by_hand(&scaler, run.gradients(OVERFLOW));
    let grads = scaler.unscale(grads, &run.norms).unwrap();
    assert!(grads.has_overflow());
    run.optim.discard(grads).unwrap();
    assert!(!run.step(GOOD));
    assert_eq!(run.first(), good);
}

/// With a scaler alone, and gradients that are scaled by hand.
#[test]
fn a_scaler_alone_mends_them_too() {
    let mut norm = BatchNormConfig::new(2).init(&flex());
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = SgdConfig::new().init();
    let mut good = Vec::new();
    for factor in [1.0, f32::INFINITY] {
        let loss = norm.forward(input() * factor).square().mean();
        let grads = scaler.unscale(scaler.backward(loss, &norm), &norm).unwrap();
        norm = scaler.step(&mut optim, 0.1, norm, grads);
        scaler.update().unwrap();
        good.push(values(norm.running_var.value_sync()));
    }
    assert_eq!(scaler.counters().skipped(), 1);
    assert_eq!(good[0], good[1]);
}

/// Burn shares them between clones, and maps them in place: keep them where a clone goes on.
#[test]
fn converting_a_clone_converts_the_original() {
    let norm = BatchNormConfig::new(2).init(&Device::flex());
    let half = to_half(norm.clone(), FloatDType::F16, &[]);
    assert_eq!(half.running_mean.value().dtype(), DType::F16);
    assert_eq!(norm.gamma.val().dtype(), DType::F32);
    assert_eq!(norm.running_mean.value().dtype(), DType::F16);
}

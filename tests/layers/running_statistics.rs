//! BatchNorm's running statistics, in which Burn has surprises of its own.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;
use burn_pack::Reader;

use crate::support::{tensor, values};

fn mean_in(record: ModuleRecord) -> Vec<u8> {
    let reader = Reader::from_bytes(record.into_bytes().unwrap()).unwrap();
    reader.tensor_data("running_mean").unwrap()
}

fn norm(amp: &MixedPrecision, device: &Device) -> BatchNorm {
    let norm = BatchNormConfig::new(2).init(device);
    norm.apply_reparameterization(amp.clone())
}

fn forward(norm: &BatchNorm, amp: &MixedPrecision, input: Tensor<3>) -> Tensor<3> {
    amp.autocast(input, |x| in_f32(x, |x| norm.forward(x)))
}

fn input(device: &Device) -> Tensor<3> {
    tensor([4, 2, 3], device)
}

/// They move, in f32, whatever the model computes in.
#[test]
fn they_follow_the_f32_model() {
    let device = Device::flex().autodiff();
    let train = |dtype| {
        let amp = MixedPrecision::new(dtype);
        let norm = norm(&amp, &device);
        for _ in 0..5 {
            forward(&norm, &amp, input(&device));
        }
        let mean = norm.running_mean.value_sync();
        assert_eq!(mean.dtype(), DType::F32);
        values(mean)
    };
    let (half, full) = (train(FloatDType::F16), train(FloatDType::F32));
    for (half, full) in half.iter().zip(&full) {
        assert!((half - full).abs() < 1e-3, "{half} {full}");
        assert!(full.abs() > 1e-3, "{full}");
    }
}

/// Burn's record of a BatchNorm in training lacks the last update, unless `valid` was called before. If this fails,
/// Burn has mended it, and the warning in the documentation can go.
#[test]
fn a_record_lacks_the_last_update_before_valid() {
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f16();
    let norm = norm(&amp, &device);
    forward(&norm, &amp, input(&device));
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
        run.step([1.0; 2]);
        let early = mean_in(run.norms.first.clone().into_record());
        run.norms.valid();
        assert_eq!(early, mean_in(run.norms.first.clone().into_record()));
    }
}

/// With `valid` called before the save, a resumed run has the same ones, to the last bit.
#[test]
fn a_resumed_run_has_the_same() {
    let device = Device::flex().autodiff();
    let f16 = MixedPrecision::f16();
    let build = || norm(&f16, &device);
    let train = |norm: &BatchNorm| {
        for _ in 0..3 {
            forward(norm, &f16, input(&device));
        }
    };
    let straight = build();
    train(&straight);
    straight.valid();
    let bytes = straight.clone().into_record().into_bytes().unwrap();
    train(&straight);
    let resumed = build().load_record(ModuleRecord::from_bytes(bytes).unwrap());
    train(&resumed);
    let end = |norm: BatchNorm| {
        norm.valid();
        mean_in(norm.into_record())
    };
    assert_eq!(end(resumed), end(straight));
}

/// Two layers, of which one computes on an input of its own.
#[derive(Module, Debug)]
struct Norms {
    first: BatchNorm,
    second: BatchNorm,
}

struct Loop {
    amp: MixedPrecision,
    norms: Norms,
    optim: ScaledOptimizer,
    device: Device,
}

impl Loop {
    fn with(amp: &MixedPrecision) -> Self {
        let device = Device::flex().autodiff();
        let norms = Norms {
            first: BatchNormConfig::new(2).init(&device),
            second: BatchNormConfig::new(2).init(&device),
        };
        Self {
            amp: amp.clone(),
            norms: norms.apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(SgdConfig::new().init(), amp),
            device,
        }
    }

    /// The gradients of a forward pass in which each channel of the first layer's input is multiplied by a factor.
    fn gradients(&self, factors: [f32; 2]) -> GradientsParams {
        let factors = Tensor::<1>::from_data(factors, &self.device).reshape([1, 2, 1]);
        let first = forward(&self.norms.first, &self.amp, input(&self.device) * factors);
        let second = forward(&self.norms.second, &self.amp, input(&self.device));
        let loss = (first + second).square().mean();
        GradientsParams::from_grads(loss.backward(), &self.norms)
    }

    /// After so many steps in which nothing overflows.
    fn after(steps: usize) -> Self {
        let mut run = Self::with(&MixedPrecision::f16());
        for _ in 0..steps {
            assert!(!run.step([1.0; 2]));
        }
        run
    }

    /// Whether it was skipped.
    fn step(&mut self, factors: [f32; 2]) -> bool {
        let grads = self.gradients(factors);
        let norms = self.norms.clone();
        self.norms = self.optim.step(0.1, norms, grads);
        self.optim.scaler().last_outcome() == Some(StepOutcome::Skipped)
    }

    fn statistics(&self) -> [Vec<f32>; 4] {
        let Norms { first, second } = &self.norms;
        [
            &first.running_mean,
            &first.running_var,
            &second.running_mean,
            &second.running_var,
        ]
        .map(|statistic| values(statistic.value_sync()))
    }
}

/// Infinite in f16.
const OVERFLOW: [f32; 2] = [1e6, 1e6];

/// Those that are not finite are those of the last good step; those of the other layer have moved, and stay so.
#[test]
fn an_overflow_in_the_forward_pass_leaves_the_last_good_ones() {
    let mut run = Loop::after(3);
    let good = run.statistics();
    let other = run.norms.second.clone();
    for _ in 0..2 {
        assert!(run.step(OVERFLOW));
    }
    let [mean, var, second_mean, second_var] = run.statistics();
    assert_eq!([&mean, &var], [&good[0], &good[1]]);
    assert_ne!([&second_mean, &second_var], [&good[2], &good[3]]);
    // Clones share them.
    assert_eq!(values(other.running_mean.value_sync()), second_mean);

    // The run goes on as if there had been no overflow.
    run.step([1.0; 2]);
    assert_eq!(run.statistics()[..2], Loop::after(4).statistics()[..2]);
}

/// Channel by channel.
#[test]
fn a_channel_that_does_not_overflow_keeps_what_it_has_seen() {
    let (good, seen) = (Loop::after(1).statistics(), Loop::after(2).statistics());
    let mut run = Loop::after(1);
    assert!(run.step([1e6, 1.0]));
    let statistics = run.statistics();
    for index in 0..2 {
        assert_eq!(statistics[index], [good[index][0], seen[index][1]]);
    }
}

/// Before any good step, they are those with which the layer came.
#[test]
fn an_overflow_in_the_first_forward_pass_leaves_the_first_ones() {
    let mut run = Loop::after(0);
    assert!(run.step(OVERFLOW));
    let [mean, var, ..] = run.statistics();
    assert_eq!((mean, var), (vec![0.0; 2], vec![1.0; 2]));
}

/// The step of a window is skipped for one of its micro-batches, the others having moved the statistics.
#[test]
fn a_window_that_is_skipped_leaves_those_before_it() {
    for bad in 0..3 {
        let mut run = Loop::after(0);
        run.optim = run.optim.with_accumulation(3).unwrap();
        for index in 0..6 {
            run.step(if index == 3 + bad { OVERFLOW } else { [1.0; 2] });
        }
        let counters = run.optim.scaler().counters();
        assert_eq!((counters.stepped(), counters.skipped()), (1, 1));
        let good = Loop::after(3);
        assert_eq!(run.statistics()[..2], good.statistics()[..2], "{bad}");
    }
}

/// A micro-batch that is dropped takes what it did with it; the others of the window stay.
#[test]
fn a_micro_batch_that_is_dropped_leaves_those_before_it() {
    let mut run = Loop::after(0);
    let window = AccumulationConfig::new(2).with_skip_micro_batch(true);
    run.optim = run.optim.with_accumulation(window).unwrap();
    for factors in [[1.0; 2], OVERFLOW, [1.0; 2]] {
        run.step(factors);
    }
    let counters = run.optim.scaler().counters();
    assert_eq!((counters.dropped(), counters.stepped()), (1, 1));
    assert_eq!(run.statistics()[..2], Loop::after(2).statistics()[..2]);
}

/// The forward pass of one optimizer's loss may go through the module of another, as a generator's does.
#[test]
fn another_optimizers_overflow_is_mended_by_the_next_step() {
    let amp = MixedPrecision::f16();
    let (mut critic, mut generator) = (Loop::with(&amp), Loop::with(&amp));
    critic.step([1.0; 2]);
    let good = critic.statistics();
    // Through the critic's layer, for the generator's loss.
    let output = forward(&critic.norms.first, &amp, input(&critic.device) * 1e6);
    let own = forward(&generator.norms.first, &amp, input(&critic.device));
    let grads = (output * own).mean().backward();
    let grads = GradientsParams::from_grads(grads, &generator.norms);
    generator.norms = generator.optim.step(0.1, generator.norms, grads);
    assert_eq!(generator.optim.scaler().counters().skipped(), 1);
    assert!(!critic.statistics()[0][0].is_finite());
    critic.step([1.0; 2]);
    assert_eq!(critic.statistics()[..2], good[..2]);
}

/// Gradients that a program throws away have had a forward pass, too.
#[test]
fn an_overflow_that_is_discarded_is_mended_by_the_next_step() {
    let mut run = Loop::after(1);
    let good = run.statistics();
    let grads = run.gradients(OVERFLOW);
    let scaler = GradScalerConfig::new().with_init_scale(1.0).init().unwrap();
    let grads = scaler
        .unscale(scaled_by_hand(&scaler, grads), &run.norms)
        .unwrap();
    assert!(grads.has_overflow());
    run.optim.discard(grads).unwrap();
    assert!(!run.step([1.0; 2]));
    assert_eq!(run.statistics()[..2], good[..2]);
}

/// With a scaler alone, and gradients that are scaled by hand.
#[test]
fn a_scaler_alone_mends_them_too() {
    let device = Device::flex().autodiff();
    let mut norm = BatchNormConfig::new(2).init(&device);
    let mut scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = SgdConfig::new().init();
    let mut good = Vec::new();
    for factor in [1.0, f32::INFINITY] {
        let loss = norm.forward(input(&device) * factor).square().mean();
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
    let device = Device::flex();
    let norm = BatchNormConfig::new(2).init(&device);
    let half = to_half(norm.clone(), FloatDType::F16, &[]);
    assert_eq!(half.running_mean.value().dtype(), DType::F16);
    assert_eq!(norm.gamma.val().dtype(), DType::F32);
    assert_eq!(norm.running_mean.value().dtype(), DType::F16);
}

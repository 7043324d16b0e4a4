//! BatchNorm's running statistics, in which Burn has surprises of its own.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig},
    optim::{GradientsParams, SgdConfig},
    store::ModuleRecord,
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::{MixedPrecision, ScaledOptimizer, StepOutcome, in_f32, to_half};
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

/// The forward pass writes them: a skipped step does not take back what an overflow did there.
#[test]
fn an_overflow_in_the_forward_pass_stays_in_them() {
    let device = Device::flex().autodiff();
    let f16 = MixedPrecision::f16();
    let mut norm = norm(&f16, &device);
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &f16);
    let output = forward(&norm, &f16, input(&device) * 1e6);
    let grads = GradientsParams::from_grads(output.mean().backward(), &norm);
    norm = optim.step(0.1, norm, grads);
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Skipped));
    assert_eq!(values(norm.gamma.base()), [1.0; 2]);
    let mean = values(norm.running_mean.value_sync());
    assert!(mean.iter().any(|value| !value.is_finite()), "{mean:?}");
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

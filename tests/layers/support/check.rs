//! The life of a layer in half precision, beside the same layer in f32.

use burn::{
    module::{Module, ParamGroup},
    optim::{AdamConfig, GradientsParams},
    store::ModuleRecord,
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer, StepOutcome};
use burn_pack::Reader;

use super::{fill, gradients, parameters, relative_error, values};

/// `MixedPrecision` that keeps the parameters whose path contains one of `keep`.
pub fn precision(dtype: FloatDType, keep: &[&str]) -> MixedPrecision {
    let groups = keep.iter().map(|part| ParamGroup::from_predicate(*part));
    groups.fold(MixedPrecision::new(dtype), MixedPrecision::keep)
}

/// Trains a layer in f16 and in bf16 and compares all that comes out of it with the layer in f32.
///
/// `forward` makes its own inputs on the device it is given.
pub fn check<M: Module, const D: usize>(
    init: impl Fn(&Device) -> M,
    keep: &[&str],
    forward: impl Fn(&M, &MixedPrecision, &Device) -> Tensor<D>,
) {
    // Rounding is 2^-11 and 2^-8; layers add it up.
    for (dtype, tolerance) in [(FloatDType::F16, 1e-2), (FloatDType::BF16, 6e-2)] {
        let precision = precision(dtype, keep);
        run(&init, &precision, tolerance, &forward);
    }
}

fn run<M: Module, const D: usize>(
    init: &impl Fn(&Device) -> M,
    precision: &MixedPrecision,
    tolerance: f32,
    forward: &impl Fn(&M, &MixedPrecision, &Device) -> Tensor<D>,
) {
    let device = Device::flex().autodiff();
    let full = MixedPrecision::new(FloatDType::F32);
    let half = DType::from(precision.dtype());
    let plain = fill(init(&device));
    let start = parameters(&plain);
    let mut model = plain.clone().apply_reparameterization(precision.clone());

    // Forward.
    let output = forward(&model, precision, &device);
    let expected = forward(&plain, &full, &device);
    assert_eq!(output.dtype(), half);
    let error = relative_error(&values(output), &values(expected.clone()));
    assert!(error < tolerance, "output is off by {error}");
    assert!(error > 0.0, "nothing was rounded: not in half precision");

    // Backward. The largest gradient of all is the measure for those that are zero but for rounding.
    let grads = GradientsParams::from_grads(expected.square().mean().backward(), &plain);
    let expected = gradients(&grads, &plain);
    let scaler = GradScalerConfig::new().with_init_scale(1024.0);
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler.init().unwrap());
    let loss = |model: &M| {
        let output = forward(model, precision, &device);
        output.cast(FloatDType::F32).square().mean()
    };
    let grads = optim.unscale(optim.backward(loss(&model), &model), &model);
    let actual = gradients(grads.params(), &model);
    let trainable = start.iter().filter(|(.., trainable)| *trainable).count();
    assert_eq!(actual.len(), trainable);
    assert_eq!(expected.len(), trainable);
    let all = |grads: &[(String, Vec<f32>)]| -> Vec<f32> {
        grads
            .iter()
            .flat_map(|(_, values)| values.clone())
            .collect()
    };
    let error = relative_error(&all(&actual), &all(&expected));
    assert!(error < 2.0 * tolerance, "gradients are off by {error}");

    // Step.
    let before: f32 = loss(&model).into_scalar();
    model = optim.step(1e-3, model, grads);
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Applied));
    for _ in 0..3 {
        let grads = optim.backward(loss(&model), &model);
        model = optim.step(1e-3, model, grads);
    }
    let after: f32 = loss(&model).into_scalar();
    assert!(after < before, "loss went from {before} to {after}");
    for ((path, before, trainable), (_, after, _)) in start.iter().zip(parameters(&model)) {
        assert!(!trainable || *before != after, "`{path}` stands still");
    }

    // Validation.
    let valid = model.clone().valid();
    let outside = Device::flex();
    let output = forward(&valid, precision, &outside);
    assert_eq!(output.dtype(), half);
    assert!(!output.is_autodiff());

    // The record is that of the plain layer, in f32, and loads into it.
    let bytes = model.clone().into_record().into_bytes().unwrap();
    assert_eq!(
        tensors(bytes.clone()),
        tensors(plain.clone().into_record().into_bytes().unwrap())
    );
    let record = ModuleRecord::from_bytes(bytes).unwrap();
    let loaded = init(&device).load_record(record.clone());
    assert_eq!(parameters(&loaded), parameters(&model));
    let expected = forward(&loaded.valid(), &full, &outside);
    assert_eq!(expected.dtype(), DType::F32);
    let output = values(output);
    let error = relative_error(&output, &values(expected));
    assert!(error < tolerance, "valid() is off by {error}");

    // And into the layer in half precision, where nothing at all may differ.
    let resumed = init(&device).apply_reparameterization(precision.clone());
    let resumed = resumed.load_record(record);
    assert_eq!(parameters(&resumed), parameters(&model));
    let again = forward(&resumed.valid(), precision, &outside);
    assert_eq!(values(again), output);
}

/// Names and dtypes of the tensors in a record, the latter all f32.
fn tensors(bytes: burn::tensor::Bytes) -> Vec<String> {
    let tensors = Reader::from_bytes(bytes).unwrap().into_tensors().unwrap();
    let name = |tensor: burn_pack::Tensor| {
        assert_eq!(tensor.dtype, DType::F32, "{}", tensor.name);
        tensor.name
    };
    tensors.into_iter().map(name).collect()
}

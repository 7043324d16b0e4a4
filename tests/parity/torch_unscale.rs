//! PyTorch's `_amp_foreach_non_finite_check_and_unscale_`: every value bit for bit, and the verdict.

use burn::{
    module::{Module, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Device, FloatDType, Tensor, TensorData},
};
use burn_amp::GradScalerConfig;
use burn_amp_tests::{reference, scaled_by_hand};
use half::{bf16, f16};
use serde::Deserialize;
use std::num::FpCategory::Subnormal;

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    dtype: String,
    scale: f64,
    inv_scale_hex: String,
    input: Vec<String>,
    found_inf: f64,
    output: Vec<String>,
}

#[derive(Module, Debug)]
struct One {
    weight: Param<Tensor<1>>,
}

fn bits(hex: &str) -> u32 {
    u32::from_str_radix(hex, 16).unwrap()
}

fn dtype(case: &Case) -> FloatDType {
    match case.dtype.as_str() {
        "torch.float32" => FloatDType::F32,
        "torch.float16" => FloatDType::F16,
        "torch.bfloat16" => FloatDType::BF16,
        other => panic!("unknown dtype {other}"),
    }
}

fn input(case: &Case, device: &Device) -> Tensor<1> {
    let length = [case.input.len()];
    let values = case.input.iter().map(|hex| bits(hex));
    let data = match dtype(case) {
        FloatDType::F16 => {
            let values: Vec<f16> = values.map(|b| f16::from_bits(b as u16)).collect();
            TensorData::new(values, length)
        }
        FloatDType::BF16 => {
            let values: Vec<bf16> = values.map(|b| bf16::from_bits(b as u16)).collect();
            TensorData::new(values, length)
        }
        _ => TensorData::new(values.map(f32::from_bits).collect::<Vec<f32>>(), length),
    };
    Tensor::from_data(data, (device, DType::from(dtype(case))))
}

/// Bits in the case's dtype of values in f32 (exact for values that were rounded to it).
fn rounded_bits(values: &[f32], dtype: FloatDType) -> Vec<u32> {
    let bits = |value: &f32| match dtype {
        FloatDType::F16 => u32::from(f16::from_f32(*value).to_bits()),
        FloatDType::BF16 => u32::from(bf16::from_f32(*value).to_bits()),
        _ => value.to_bits(),
    };
    values.iter().map(bits).collect()
}

fn is_nan(bits: u32, dtype: FloatDType) -> bool {
    match dtype {
        FloatDType::F16 => f16::from_bits(bits as u16).is_nan(),
        FloatDType::BF16 => bf16::from_bits(bits as u16).is_nan(),
        _ => f32::from_bits(bits).is_nan(),
    }
}

fn is_subnormal(bits: u32, dtype: FloatDType) -> bool {
    match dtype {
        FloatDType::F16 => f16::from_bits(bits as u16).classify() == Subnormal,
        FloatDType::BF16 => bf16::from_bits(bits as u16).classify() == Subnormal,
        _ => f32::from_bits(bits).is_subnormal(),
    }
}

/// Checks one case and tells whether it is a departure: a value that only unscaling made infinite.
fn check(case: &Case, parameter_dtype: bool, at: &str) -> bool {
    let device = Device::default();
    let inverse = (1.0 / f64::from(case.scale as f32)) as f32;
    assert_eq!(inverse.to_bits(), bits(&case.inv_scale_hex), "{at}");

    let grad = input(case, &device);
    let module = One {
        weight: Param::initialized(ParamId::new(), grad.zeros_like()),
    };
    let mut grads = GradientsParams::new();
    grads.register(module.weight.id, grad);
    let config = GradScalerConfig::new()
        .with_init_scale(case.scale)
        .with_dynamic(false)
        .with_parameter_dtype_gradients(parameter_dtype);
    let scaler = config.init().unwrap();
    let unscaled = scaler.unscale(scaled_by_hand(&scaler, grads), &module);

    let output = unscaled.get::<1>(module.weight.id).unwrap();
    let expected_dtype = match parameter_dtype {
        false => DType::F32,
        true => dtype(case).into(),
    };
    assert_eq!(output.dtype(), expected_dtype, "{at}");
    let values: Vec<f32> = output.cast(FloatDType::F32).try_to_vec_as().unwrap();
    for (position, (ours, theirs)) in rounded_bits(&values, dtype(case))
        .into_iter()
        .zip(&case.output)
        .enumerate()
    {
        let theirs = bits(theirs);
        // The payload of a NaN is nobody's contract.
        let both_nan = is_nan(ours, dtype(case)) && is_nan(theirs, dtype(case));
        // Not every device keeps what is subnormal.
        let flushed = device != Device::flex()
            && ours & 0x7FFF_FFFF == 0
            && is_subnormal(theirs, dtype(case));
        let same = ours == theirs || both_nan || flushed;
        assert!(same, "{at}, value {position}: {ours:08x}, not {theirs:08x}");
    }

    let found_inf = case.found_inf != 0.0;
    let only_by_unscaling = !found_inf && values.iter().any(|value| !value.is_finite());
    assert_eq!(
        unscaled.has_overflow(),
        found_inf || only_by_unscaling,
        "{at}"
    );
    only_by_unscaling
}

/// The cases of dtypes that the device has.
fn supported(file: &File) -> impl Iterator<Item = &Case> {
    let device = Device::default();
    let supports = move |case: &&Case| device.supports_dtype(DType::from(dtype(case)));
    file.cases.iter().filter(supports)
}

/// Where a finite value becomes infinite by unscaling (a scale below 1), PyTorch says 0 and steps on it; ours
/// counts it as an overflow. Everything else is the same.
#[test]
fn parity_torch_unscale() {
    for (name, file) in reference::<File>("torch_unscale_cases") {
        let departures = (supported(&file).enumerate())
            .filter(|(index, case)| check(case, false, &format!("{name}, case {index}")))
            .count();
        assert!(
            departures > 0,
            "{name}: the departure is not among the cases"
        );
    }
}

/// Rounded to the parameter's dtype, as PyTorch writes its gradients back.
#[test]
fn parity_torch_unscale_in_the_parameters_dtype() {
    for (name, file) in reference::<File>("torch_unscale_cases") {
        for (index, case) in supported(&file).enumerate() {
            check(case, true, &format!("{name}, case {index}"));
        }
    }
}

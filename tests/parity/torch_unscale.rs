//! PyTorch's `_amp_foreach_non_finite_check_and_unscale_`: every value bit for bit, and the verdict.

use burn_amp_tests::prelude::*;
use burn_amp_tests::reference;
use half::{bf16, f16};
use serde::Deserialize;
use std::num::FpCategory::{self, Nan, Subnormal};

use crate::One;

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
            TensorData::new(values.map(|b| f16::from_bits(b as u16)).collect(), length)
        }
        FloatDType::BF16 => {
            TensorData::new(values.map(|b| bf16::from_bits(b as u16)).collect(), length)
        }
        _ => TensorData::new(values.map(f32::from_bits).collect(), length),
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

fn class(bits: u32, dtype: FloatDType) -> FpCategory {
    match dtype {
        FloatDType::F16 => f16::from_bits(bits as u16).classify(),
        FloatDType::BF16 => bf16::from_bits(bits as u16).classify(),
        _ => f32::from_bits(bits).classify(),
    }
}

/// Checks one case and tells whether it is a departure: a value that only unscaling made infinite.
fn check(case: &Case, parameter_dtype: bool, at: &str) -> bool {
    let device = Device::default();
    let inverse = (1.0 / f64::from(case.scale as f32)) as f32;
    assert_eq!(inverse.to_bits(), bits(&case.inv_scale_hex), "{at}");

    let config = GradScalerConfig::new()
        .with_init_scale(case.scale)
        .with_dynamic(false)
        .with_parameter_dtype_gradients(parameter_dtype);
    let scaler = config.init().unwrap();
    let (unscaled, output) = One::unscaled(&scaler, input(case, &device));
    let expected_dtype = match parameter_dtype {
        false => DType::F32,
        true => dtype(case).into(),
    };
    assert_eq!(output.dtype(), expected_dtype, "{at}");
    let values: Vec<f32> = output.cast(FloatDType::F32).try_to_vec_as().unwrap();
    let rounded = rounded_bits(&values, dtype(case)).into_iter();
    for (position, (ours, theirs)) in rounded.zip(&case.output).enumerate() {
        let theirs = bits(theirs);
        let classes = [ours, theirs].map(|bits| class(bits, dtype(case)));
        // The payload of a NaN is nobody's contract.
        let both_nan = classes == [Nan; 2];
        // Not every device keeps what is subnormal.
        let is_lost = ours & 0x7FFF_FFFF == 0 && classes[1] == Subnormal;
        let flushed = device != Device::flex() && is_lost;
        let same = ours == theirs || both_nan || flushed;
        assert!(same, "{at}, value {position}: {ours:08x}, not {theirs:08x}");
    }

    let found_inf = case.found_inf != 0.0;
    let only_by_unscaling = !found_inf && values.iter().any(|value| !value.is_finite());
    let expected = found_inf || only_by_unscaling;
    assert_eq!(unscaled.has_overflow(), expected, "{at}");
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
    let mut departures = 0;
    for (name, file) in reference::<File>("torch_unscale_cases") {
        for (index, case) in supported(&file).enumerate() {
            // Wide, and rounded to the parameter's dtype, as PyTorch writes its gradients back.
            for parameter_dtype in [false, true] {
                let at = format!("{name}, case {index}, {parameter_dtype}");
                departures += u32::from(check(case, parameter_dtype, &at) && !parameter_dtype);
            }
        }
    }
    assert!(departures > 0, "the departure is not among the cases");
}

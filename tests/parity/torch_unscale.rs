//! PyTorch's `_amp_foreach_non_finite_check_and_unscale_`: every value bit for bit, and whether one is not finite.

use super::*;

fn bits(hex: &Value) -> u32 {
    u32::from_str_radix(hex.as_str().unwrap(), 16).unwrap()
}

fn dtype(case: &Value) -> FloatDType {
    match case["dtype"].as_str().unwrap() {
        "torch.float32" => FloatDType::F32,
        "torch.float16" => FloatDType::F16,
        "torch.bfloat16" => FloatDType::BF16,
        other => panic!("unknown dtype {other}"),
    }
}

/// Checks one case and returns whether it is a departure: a value that only unscaling made infinite.
fn check(case: &Value, parameter_dtype: bool, at: &str) -> bool {
    let (device, own) = (Device::default(), DType::from(dtype(case)));
    let data = |field: &str| {
        let values = list(&case[field]).iter();
        let bytes = values.flat_map(|hex| bits(hex).to_le_bytes().into_iter().take(own.size()));
        TensorData::from_bytes_vec(bytes.collect(), [list(&case[field]).len()], own)
    };
    let scale = case["scale"].as_f64().unwrap();
    let inverse = (1.0 / f64::from(scale as f32)) as f32;
    assert_eq!(inverse.to_bits(), bits(&case["inv_scale_hex"]), "{at}");

    let config = at_scale(scale).with_dynamic(false);
    let config = config.with_parameter_dtype_gradients(parameter_dtype);
    let input = Tensor::<1>::from_data(data("input"), (&device, own));
    let (unscaled, found) = unscaled(&GradScaler::new(config).unwrap(), input);
    let expected = if parameter_dtype { own } else { DType::F32 };
    assert_eq!(found.dtype(), expected, "{at}");
    let values = found.cast(FloatDType::F32).into_data();
    let (rounded, output) = (values.clone().convert_dtype(own), data("output"));
    let pairs = rounded.iter::<f32>().zip(output.iter::<f32>());
    for (position, (ours, theirs)) in pairs.enumerate() {
        // The payload of a NaN is nobody's contract.
        let both_nan = ours.is_nan() && theirs.is_nan();
        // Not every device keeps what is subnormal.
        let is_lost = match own {
            DType::F16 => theirs.abs() < half::f16::MIN_POSITIVE.to_f32(),
            _ => theirs.abs() < f32::MIN_POSITIVE,
        };
        let flushed = device != Device::flex() && ours == 0.0 && is_lost;
        let same = ours.to_bits() == theirs.to_bits() || both_nan || flushed;
        assert!(same, "{at}, value {position}: {ours:e}, not {theirs:e}");
    }

    let found_inf = case["found_inf"] != 0.0;
    let only_by_unscaling = !found_inf && values.iter::<f32>().any(|value| !value.is_finite());
    let expected = found_inf || only_by_unscaling;
    assert_eq!(unscaled.has_overflow(), expected, "{at}");
    only_by_unscaling
}

/// Where a finite value becomes infinite by unscaling (a scale below 1), PyTorch says 0 and steps on it; ours
/// counts it as an overflow. Everything else is the same.
#[test]
fn parity_torch_unscale() {
    let mut departures = 0;
    for (name, file) in reference::<Value>("torch_unscale_cases") {
        let cases = list(&file["cases"]).iter().enumerate();
        // Of dtypes that the device has.
        let supports = |case| Device::default().supports_dtype(DType::from(dtype(case)));
        for (index, case) in cases.filter(|(_, case)| supports(case)) {
            // Wide, and rounded to the parameter's dtype, as PyTorch writes its gradients back.
            for parameter_dtype in [false, true] {
                let at = format!("{name}, case {index}, {parameter_dtype}");
                departures += u32::from(check(case, parameter_dtype, &at) && !parameter_dtype);
            }
        }
    }
    assert!(departures > 0, "the departure is not among the cases");
}

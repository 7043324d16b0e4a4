//! PyTorch's `_amp_foreach_non_finite_check_and_unscale_`: every value bit for bit, and whether one is not finite.

use burn_amp_tests::prelude::*;
use half::{bf16, f16};

fn bits(hex: &Value) -> u32 {
    u32::from_str_radix(hex.as_str().unwrap(), 16).unwrap()
}

/// The case's dtype, a value of these bits in it, and a value rounded to it.
type Kind = (FloatDType, fn(u32) -> f32, fn(f32) -> f32);

fn kind(case: &Value) -> Kind {
    match case["dtype"].as_str().unwrap() {
        "torch.float32" => (FloatDType::F32, f32::from_bits, |value| value),
        "torch.float16" => (
            FloatDType::F16,
            |bits| f16::from_bits(bits as u16).to_f32(),
            |value| f16::from_f32(value).to_f32(),
        ),
        "torch.bfloat16" => (
            FloatDType::BF16,
            |bits| bf16::from_bits(bits as u16).to_f32(),
            |value| bf16::from_f32(value).to_f32(),
        ),
        other => panic!("unknown dtype {other}"),
    }
}

/// Checks one case and returns whether it is a departure: a value that only unscaling made infinite.
fn check(case: &Value, parameter_dtype: bool, at: &str) -> bool {
    let (device, (dtype, value, rounded)) = (Device::default(), kind(case));
    let smallest_normal = match dtype {
        FloatDType::F16 => f16::MIN_POSITIVE.to_f32(),
        _ => f32::MIN_POSITIVE,
    };
    let scale = case["scale"].as_f64().unwrap();
    let [input, output] = ["input", "output"].map(|field| crate::list(&case[field]));
    let inverse = (1.0 / f64::from(scale as f32)) as f32;
    assert_eq!(inverse.to_bits(), bits(&case["inv_scale_hex"]), "{at}");

    let config = at_scale(scale).with_dynamic(false);
    let config = config.with_parameter_dtype_gradients(parameter_dtype);
    let scaler = GradScaler::new(config).unwrap();
    let input: Vec<f32> = (input.iter().map(|hex| value(bits(hex)))).collect();
    let input = Tensor::<1>::from_data(input.as_slice(), (&device, dtype.into()));
    let (unscaled, found) = crate::unscaled(&scaler, input);
    let own = DType::from(dtype);
    let expected = if parameter_dtype { own } else { DType::F32 };
    assert_eq!(found.dtype(), expected, "{at}");
    let values: Vec<f32> = found.cast(FloatDType::F32).try_to_vec_as().unwrap();
    for (position, (ours, theirs)) in values.iter().zip(output).enumerate() {
        let (ours, theirs) = (rounded(*ours), value(bits(theirs)));
        // The payload of a NaN is nobody's contract.
        let both_nan = ours.is_nan() && theirs.is_nan();
        // Not every device keeps what is subnormal.
        let is_lost = ours == 0.0 && theirs.abs() < smallest_normal;
        let flushed = device != Device::flex() && is_lost;
        let same = ours.to_bits() == theirs.to_bits() || both_nan || flushed;
        assert!(same, "{at}, value {position}: {ours:e}, not {theirs:e}");
    }

    let found_inf = case["found_inf"] != 0.0;
    let only_by_unscaling = !found_inf && values.iter().any(|value| !value.is_finite());
    let expected = found_inf || only_by_unscaling;
    assert_eq!(unscaled.has_overflow(), expected, "{at}");
    only_by_unscaling
}

/// The cases of dtypes that the device has.
fn supported(file: &Value) -> impl Iterator<Item = &Value> {
    let device = Device::default();
    let supports = move |case: &&Value| device.supports_dtype(DType::from(kind(case).0));
    file["cases"].as_array().unwrap().iter().filter(supports)
}

/// Where a finite value becomes infinite by unscaling (a scale below 1), PyTorch says 0 and steps on it; ours
/// counts it as an overflow. Everything else is the same.
#[test]
fn parity_torch_unscale() {
    let mut departures = 0;
    for (name, file) in reference::<Value>("torch_unscale_cases") {
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

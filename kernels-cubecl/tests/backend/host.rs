//! The reference: numbers of all float dtypes as f64, which holds them without loss, and the contract of `unscale` and `inspect` in it.

use std::ops::RangeInclusive;

use super::*;

/// The values of a tensor.
pub fn widen(data: &TensorData) -> Vec<f64> {
    assert!(data.dtype().is_float(), "{:?}", data.dtype());
    data.iter().collect()
}

/// A tensor's data. Burn 0.22.1's CPU runtime cannot read every tensor that is empty.
pub fn read<const D: usize>(tensor: Tensor<D>) -> TensorData {
    match tensor.shape().num_elements() {
        0 => TensorData::from_bytes_vec(Vec::new(), tensor.shape(), tensor.dtype()),
        _ => tensor.into_data(),
    }
}

pub fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    widen(&read(tensor.clone()))
}

/// Same bits, NaN of all payloads alike.
pub fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Asserts that all are the same.
pub fn assert_same(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let mut both = found.iter().zip(expected);
    assert_eq!(both.find(|(a, b)| !same(**a, **b)), None, "{what}");
}

/// What a number is rounded to in a dtype, by way of f32.
pub fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(value as f32).to_f64(),
        DType::BF16 => bf16::from_f32(value as f32).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

/// The smallest normal value.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::MIN_POSITIVE.to_f64_const(),
        DType::F64 => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

/// What a value of this dtype becomes.
pub fn product(dtype: DType, value: f64, inverse: f32) -> f64 {
    match dtype {
        DType::F64 => value * f64::from(inverse),
        _ => f64::from(value as f32 * inverse),
    }
}

/// Whether a device that takes subnormal values for zero may see or write zero here.
pub fn may_flush(dtype: DType, target: DType, before: f64, after: f64) -> bool {
    // The smallest normal value too: what was rounded up to it may have been subnormal.
    let subnormal = |value: f64, dtype| value != 0.0 && value.abs() <= smallest(dtype);
    let keeps = || keeps_subnormals(dtype) && keeps_subnormals(target);
    (subnormal(before, dtype) || subnormal(after, target)) && !keeps()
}

/// What a status must say; ranges are as wide as the treatment of subnormal values is free.
#[derive(Debug)]
pub struct Expected {
    /// Of elements, of what is not finite before and after, and from the edge on.
    pub counts: [u64; 4],
    pub zeros: RangeInclusive<u64>,
    pub max_abs: RangeInclusive<f64>,
    pub norm: RangeInclusive<f64>,
}

/// Measures values (`before`) of one dtype whose products are `after`, of `target`.
pub fn measure(dtypes: [DType; 2], before: &[f64], after: &[f64], edge: f32) -> Expected {
    let [dtype, target] = dtypes;
    let count = |values: &[f64], of: fn(&&f64) -> bool| values.iter().filter(of).count() as u64;
    let bad = |values: &[f64]| count(values, |value| !value.is_finite());
    let both = before.iter().zip(after);
    let measured = both.filter(|(_, after)| after.is_finite() && **after != 0.0);
    let (free, sure): (Vec<_>, Vec<_>) =
        measured.partition(|(before, after)| may_flush(dtype, target, **before, **after));
    let [free, sure] = [free, sure].map(|both| Vec::from_iter(both.iter().map(|both| *both.1)));
    let all = [&free[..], &sure].concat();
    let zeros = count(after, |value| **value == 0.0);
    let reaches = |value: &&f64| value.is_nan() || value.abs() >= f64::from(edge);
    let above = after.iter().filter(reaches).count();
    Expected {
        counts: [before.len() as u64, bad(before), bad(after), above as u64],
        zeros: zeros..=zeros + free.len() as u64,
        max_abs: largest(&sure)..=largest(&all),
        norm: norm(&sure)..=norm(&all),
    }
}

/// Asserts that a status is the expected one; its norm nearly.
pub fn assert_status(status: &TensorStatus, expected: &Expected, tolerance: f64, what: &str) {
    let show = format!("{what}: {status:?} for {expected:?}");
    let bad = [status.non_finite_before, status.non_finite];
    let counts = [status.elements, bad[0], bad[1], status.above];
    assert_eq!(counts, expected.counts, "{show}");
    assert!(expected.zeros.contains(&status.zeros), "{show}");
    assert!(expected.max_abs.contains(&status.max_abs), "{show}");
    let least = expected.norm.start() * (1.0 - tolerance);
    let most = expected.norm.end() * (1.0 + tolerance);
    assert!((least..=most).contains(&status.norm), "{show}");
}

/// The largest magnitude.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// The L2 norm, of magnitudes relative to the largest.
pub fn norm(values: &[f64]) -> f64 {
    let max = largest(values);
    let unit = if max == 0.0 { 1.0 } else { max };
    let squares: f64 = values.iter().map(|value| (value / unit).powi(2)).sum();
    max * squares.sqrt()
}

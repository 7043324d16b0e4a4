//! The reference: the contract of `unscale` and `inspect` in plain f64 on the host.

use std::ops::RangeInclusive;

use burn::tensor::DType;

use crate::{device::keeps_subnormals, number::smallest};

/// What a value of this dtype becomes.
pub fn product(dtype: DType, value: f64, inverse: f32) -> f64 {
    match dtype {
        DType::F64 => value * f64::from(inverse),
        _ => f64::from(value as f32 * inverse),
    }
}

/// The dtype that products of this dtype are in.
pub fn product_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
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
    let bad = |values: &[f64]| values.iter().filter(|value| !value.is_finite()).count() as u64;
    let (mut kept, mut flushed, mut zeros) = (Vec::new(), Vec::new(), 0);
    for (before, after) in before.iter().zip(after) {
        if *after == 0.0 {
            zeros += 1;
        } else if after.is_finite() {
            match may_flush(dtype, target, *before, *after) {
                true => flushed.push(after.abs()),
                false => kept.push(after.abs()),
            }
        }
    }
    let reaches = |value: &&f64| value.is_nan() || value.abs() >= f64::from(edge);
    let above = after.iter().filter(reaches).count();
    let max = |values: &[f64]| values.iter().fold(0f64, |max, value| max.max(*value));
    let (least, least_norm) = (max(&kept), norm(&kept));
    let free = flushed.len() as u64;
    kept.append(&mut flushed);
    Expected {
        counts: [before.len() as u64, bad(before), bad(after), above as u64],
        zeros: zeros..=zeros + free,
        max_abs: least..=max(&kept),
        norm: least_norm..=norm(&kept),
    }
}

/// The L2 norm, of magnitudes relative to the largest.
pub fn norm(values: &[f64]) -> f64 {
    let max = values.iter().fold(0f64, |max, value| max.max(value.abs()));
    let unit = if max == 0.0 { 1.0 } else { max };
    let squares: f64 = values.iter().map(|value| (value / unit).powi(2)).sum();
    max * squares.sqrt()
}

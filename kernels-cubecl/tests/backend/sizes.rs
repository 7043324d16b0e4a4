//! Counts that f32 cannot hold: 2^24 + 1 of a kind among 2^24 + 3 values.

use burn::tensor::{DType, Tensor};
use burn_amp_kernels::TensorStatus;

use crate::{device::device, system::System};

const LENGTH: usize = (1 << 24) + 3;
const MOST: u64 = (1 << 24) + 1;

/// One value at 2^24 + 1 places, and two others elsewhere.
fn tensor([most, first, second]: [f32; 3]) -> Tensor<1> {
    let tensor = Tensor::<1>::full([LENGTH], most, (&device(), DType::F32));
    let tensor = tensor.slice_fill(12_345..12_346, first);
    tensor.slice_fill(LENGTH - 1..LENGTH, second)
}

/// Counts are of what is not finite before and after, and of zeros.
fn assert_row(system: &System, row: TensorStatus, counts: [u64; 3], max_abs: f64, norm: f64) {
    let [non_finite_before, non_finite, zeros] = counts;
    assert_eq!((row.elements, row.above), (LENGTH as u64, non_finite));
    let bad = (row.non_finite_before, row.non_finite);
    assert_eq!(bad, (non_finite_before, non_finite));
    assert_eq!((row.zeros, row.max_abs), (zeros, max_abs));
    system.assert_norm(row.norm, norm);
}

pub fn zeros_beyond_24_bits(system: &System) {
    let zeros = tensor([0.0, -6.0, 8.0]);
    let row = system.inspect_one(zeros.clone());
    assert_row(system, row, [0, 0, MOST], 8.0, 10.0);
    let (product, row) = system.unscale_one(zeros, 0.5);
    assert_row(system, row, [0, 0, MOST], 4.0, 5.0);
    let at = |at: usize| product.clone().slice(at..at + 1).into_scalar::<f32>();
    let values = [12_344, 12_345, 12_346, LENGTH - 1].map(at);
    assert_eq!(values, [0.0, -3.0, 0.0, 4.0]);
}

/// Before scaling, and only after it.
pub fn non_finite_beyond_24_bits(system: &System) {
    let infinite = tensor([f32::NEG_INFINITY, 0.0, 2.0]);
    let row = system.unscale_one(infinite, 0.5).1;
    assert_row(system, row, [MOST, MOST, 1], 1.0, 1.0);
    let huge = tensor([1e38, f32::NAN, 2.0]);
    let row = system.unscale_one(huge, 16.0).1;
    assert_row(system, row, [1, MOST + 1, 0], 32.0, 32.0);
}

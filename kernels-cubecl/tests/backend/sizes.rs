//! Counts that f32 cannot hold: 2^24 + 1 of a kind among 2^24 + 3 values.

use burn::tensor::{DType, Tensor};
use burn_amp_kernels::{TensorList, TensorStatus};

use crate::{device::device, system::System};

const LENGTH: usize = (1 << 24) + 3;
const MOST: u64 = (1 << 24) + 1;

/// One value at 2^24 + 1 places, and two others elsewhere.
fn list(most: f32, first: f32, second: f32) -> TensorList {
    let tensor = Tensor::<1>::full([LENGTH], most, (&device(), DType::F32));
    let tensor = tensor.slice_fill(12_345..12_346, first);
    let mut list = TensorList::new();
    list.push(tensor.slice_fill(LENGTH - 1..LENGTH, second));
    list
}

fn assert_row(system: &System, row: TensorStatus, counts: [u64; 3], max_abs: f64, norm: f64) {
    let [before, after, zeros] = counts;
    let expected = TensorStatus {
        elements: LENGTH as u64,
        above: after,
        non_finite_before: before,
        non_finite: after,
        zeros,
        max_abs,
        norm,
    };
    system.assert_norm(row.norm, norm);
    let row = TensorStatus { norm, ..row };
    assert_eq!(row, expected);
}

pub fn zeros_beyond_24_bits(system: &System) {
    let list = list(0.0, -6.0, 8.0);
    assert_row(
        system,
        system.inspect(list.clone()).read()[0],
        [0, 0, MOST],
        8.0,
        10.0,
    );
    let (products, status) = system.unscale(list, 0.5);
    assert_row(system, status.read()[0], [0, 0, MOST], 4.0, 5.0);
    let product = products.get::<1>(0);
    let around = |at: usize| product.clone().slice(at..at + 1).into_scalar::<f32>();
    assert_eq!(
        [
            around(12_344),
            around(12_345),
            around(12_346),
            around(LENGTH - 1)
        ],
        [0.0, -3.0, 0.0, 4.0]
    );
}

pub fn infinities_beyond_24_bits(system: &System) {
    let list = list(f32::NEG_INFINITY, 0.0, 2.0);
    assert_row(
        system,
        system.unscale(list, 0.5).1.read()[0],
        [MOST, MOST, 1],
        1.0,
        1.0,
    );
}

pub fn non_finite_after_scaling_beyond_24_bits(system: &System) {
    let list = list(1e38, f32::NAN, 2.0);
    assert_row(
        system,
        system.unscale(list, 16.0).1.read()[0],
        [1, MOST + 1, 0],
        32.0,
        32.0,
    );
}

//! Ranks, and lengths around the blocks in which values are taken.

use burn::tensor::DType;
use burn_amp_kernels::TensorList;

use crate::{
    case::Case,
    create::random,
    device::{dtypes, is_cube},
    host,
    system::System,
};

pub fn ranks(system: &System) {
    for (seed, dtype) in (10..).zip(dtypes()) {
        Case::new()
            .with(random(dtype, seed, [7]))
            .with(random(dtype, seed, [3, 5]))
            .with(random(dtype, seed, [2, 1, 9]))
            .with(random(dtype, seed, [2, 3, 4, 5]))
            .with(random(dtype, seed, [1, 2, 3, 2, 3]))
            .with(random(dtype, seed, [2, 3, 1, 2, 3, 2]))
            .with(random(dtype, seed, [1, 1, 1, 1, 1, 1]))
            .check(system, 0.125);
    }
}

/// More dimensions than any of Burn's operations is written out for.
pub fn many_dimensions(system: &System) {
    one(system, [2, 1, 3, 1, 2, 1, 2]);
    // CubeCL 0.11.3 has no tensors of more than 8.
    if !is_cube() {
        one(system, [2, 1, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 2]);
    }
}

fn one<const D: usize>(system: &System, shape: [usize; D]) {
    let list = || {
        let mut list = TensorList::new();
        list.push(random(DType::F32, 40, shape));
        list
    };
    let before = list().get::<D>(0).into_data();
    let inspected = system.inspect(list()).read()[0];
    let (products, status) = system.unscale(list(), 0.5);
    let status = status.read()[0];
    let after = products.get::<D>(0).into_data();
    assert_eq!(before.shape(), after.shape());
    let values = host::widen(&before).into_iter();
    let want: Vec<f64> = values
        .map(|value| host::product(DType::F32, value, 0.5))
        .collect();
    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(host::widen(&after)), bits(want));
    assert_eq!((inspected.elements, status.elements), (24, 24));
    assert_eq!(status.norm, 0.5 * inspected.norm);
    assert_eq!(system.histogram(list()).elements(), 24);
}

pub fn lengths(system: &System) {
    let short = 0..=70;
    let long = [
        127, 128, 129, 255, 257, 511, 513, 1023, 1024, 1025, 2047, 2049, 4097, 16383, 16385,
    ];
    for dtype in dtypes() {
        let mut case = Case::new();
        for length in short.clone().chain(long) {
            case.add(random(dtype, length as u64, [length]));
        }
        case.check(system, 0.3);
    }
}

/// One tensor is split over threads from here on.
pub fn chunk_boundaries(system: &System) {
    const CHUNK: usize = 1 << 18;
    for (seed, length) in (20..).zip([CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1]) {
        Case::new()
            .with(random(DType::F32, seed, [length]))
            .check(system, 0.3);
    }
    for (seed, dtype) in (30..).zip(dtypes()) {
        Case::new()
            .with(random(dtype, seed, [CHUNK + 1]))
            .check(system, 0.3);
    }
}

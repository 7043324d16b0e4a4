//! Ranks, and lengths around the blocks in which values are taken.

use burn::tensor::DType;

use crate::{
    case::Case,
    create::random,
    device::{dtypes, is_cube},
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
    let seven = random(DType::F32, 40, [2, 1, 3, 1, 2, 1, 2]);
    Case::new().with(seven).check(system, 0.5);
    // CubeCL 0.11.3 has no tensors of more than 8.
    if !is_cube() {
        let shape = [2, 1, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 2];
        let thirteen = random(DType::F32, 40, shape);
        Case::new().with(thirteen).check(system, 0.5);
    }
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

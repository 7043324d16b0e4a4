//! Ranks, and lengths around the blocks in which values are taken.

use burn::tensor::DType;

use crate::{case::Case, create::random, device::dtypes, system::System};

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

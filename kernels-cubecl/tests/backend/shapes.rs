//! Many dimensions, and lengths around the blocks in which values are taken.

use burn::tensor::DType;

use crate::device::{dtypes, is_cube};
use crate::{case::Case, create::random, system::System};

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

/// One tensor is split over threads from there on.
pub fn chunk_boundaries(system: &System) {
    const CHUNK: usize = 1 << 16;
    let lengths = [CHUNK - 1, CHUNK, 2 * CHUNK + 1].map(|length| (DType::F32, length));
    let dtypes = dtypes().into_iter().map(|dtype| (dtype, CHUNK + 1));
    for (seed, (dtype, length)) in (20..).zip(lengths.into_iter().chain(dtypes)) {
        let case = Case::new().with(random(dtype, seed, [length]));
        case.check(system, 0.3);
    }
}

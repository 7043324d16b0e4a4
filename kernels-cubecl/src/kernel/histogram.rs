//! Counts by binary exponent: a table for each unit, which needs no atomics, and the sum of the tables.

use cubecl::{ir::ElemType, prelude::*};

use super::finish::{LOW, put_count};
use super::share::{Share, get};
use crate::ExponentHistogram;

/// Zeros, what is not finite, exponents below the range, the range, exponents above it; as `crate::histogram`.
pub const BINS: u32 = crate::histogram::BINS as u32;
/// Units of a cube: their tables fit the 16 KiB of shared memory that WebGPU grants, and there are enough of them to
/// add up a bin each.
pub const UNITS: u32 = 64;

/// Bits of the powers of two at which the range of exponents begins and ends.
const FIRST: u32 = bits(ExponentHistogram::MIN_EXPONENT);
const LAST: u32 = bits(ExponentHistogram::MAX_EXPONENT + 1);

const fn bits(exponent: i32) -> u32 {
    ((127 + exponent) as u32) << 23
}

#[cube]
fn bin(value: f32) -> u32 {
    let bits = u32::reinterpret(value) & 0x7FFF_FFFFu32;
    let inside = 3u32 + ((max(bits, FIRST) - FIRST) >> 23u32);
    let above = select(bits >= 0x7F80_0000u32, 1u32, BINS - 1u32);
    let below = select(bits == 0u32, 0u32, 2u32);
    select(bits < FIRST, below, select(bits >= LAST, above, inside))
}

/// Each cube writes a row of `BINS` counts, from row `row` on. Which tensors and chunks are its own, `share.rs` says.
#[cube(launch_unchecked)]
pub fn histogram_many<I: Float, N: Size>(
    tensors: &Sequence<Box<[Vector<I, N>]>>,
    table: &[u32],
    from: u32,
    shift: u32,
    rows: &mut [u32],
    row: u32,
    #[comptime] units: u32,
    #[define(I)] _dtype: ElemType,
) {
    let unit = UNIT_POS;
    let count = comptime!(tensors.len());
    // A unit's column: neighbours are at work in different banks, whatever their bins are.
    let mut counts = Shared::<[u32]>::new_slice(comptime!((BINS * units) as usize));
    for bin in 0..BINS {
        counts[(bin * units + unit) as usize] = 0u32;
    }
    let mut chunk = CUBE_POS as u32;
    loop {
        let share = Share::find(table, from, chunk, count);
        let begin = (chunk - share.start) << shift;
        if begin >= share.length {
            break;
        }
        let mut position = begin + unit;
        let end = min(begin + (1u32 << shift), share.length);
        while position < end {
            let value = get(tensors, share.tensor, position, 0usize, count);
            let value = Vector::<f32, N>::cast_from(value);
            #[unroll]
            for lane in 0..N::value() {
                let at = bin(value.extract(lane)) * units + unit;
                counts[at as usize] += 1u32;
            }
            position += units;
        }
        chunk += CUBE_COUNT as u32;
    }
    sync_cube();
    let mut bin = unit;
    while bin < BINS {
        let mut sum = 0u32;
        for other in 0..units {
            sum += counts[(bin * units + other) as usize];
        }
        rows[((row + CUBE_POS as u32) * BINS + bin) as usize] = sum;
        bin += units;
    }
}

/// Adds up the rows: one cube for each bin.
#[cube(launch_unchecked)]
pub fn finish_histogram(rows: &[u32], counts: &mut [f32], count: u32, #[comptime] units: u32) {
    let bin = CUBE_POS as u32;
    let mut sum = 0u32;
    let mut high = 0u32;
    let mut row = UNIT_POS;
    while row < count {
        let one = rows[(row * BINS + bin) as usize];
        sum += one;
        high += one >> LOW;
        row += units;
    }
    let mut sums = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let mut highs = Shared::<[u32]>::new_slice(comptime!(units as usize));
    sums[UNIT_POS as usize] = sum;
    highs[UNIT_POS as usize] = high;
    sync_cube();
    if UNIT_POS == 0u32 {
        for other in 1..units {
            sum += sums[other as usize];
            high += highs[other as usize];
        }
        put_count(counts, (2u32 * bin) as usize, sum, high);
    }
}

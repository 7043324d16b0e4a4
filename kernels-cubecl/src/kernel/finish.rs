//! The last reductions: the rows of each tensor into its status words, and those into a verdict.

use cubecl::prelude::*;

use super::observe::{ROW, Seen, reduce};
use crate::words::{NARROW, NARROW_BIG, NARROW_SMALL, WORDS};

/// Units of a cube.
pub const UNITS: u32 = 64;

/// One cube for each tensor, from the tensor at place `from` on. The two words of a tensor in the table are its
/// first row and how many it has.
///
/// Counts of rows are 32 bits wide, and their sums 48.
#[cube(launch_unchecked)]
pub fn finish_status(
    partials: &[u32],
    status: &mut [u32],
    table: &[u32],
    from: u32,
    #[comptime] units: u32,
) {
    let tensor = CUBE_POS + from as usize;
    let entry = 2 * tensor;
    let end = table[entry] + table[entry + 1];
    let mut seen = Seen::new();
    let mut high = Seen::new();
    let mut row = table[entry] + UNIT_POS;
    while row < end {
        let at = row as usize * ROW;
        carry(&mut seen.above, &mut high.above, partials[at]);
        carry(&mut seen.before, &mut high.before, partials[at + 1]);
        carry(&mut seen.after, &mut high.after, partials[at + 2]);
        carry(&mut seen.zeros, &mut high.zeros, partials[at + 3]);
        seen.max = max(seen.max, partials[at + 4]);
        seen.small += f32::reinterpret(partials[at + 5]);
        seen.medium += f32::reinterpret(partials[at + 6]);
        seen.big += f32::reinterpret(partials[at + 7]);
        row += units;
    }
    split(&mut seen.above, &mut high.above);
    split(&mut seen.before, &mut high.before);
    split(&mut seen.after, &mut high.after);
    split(&mut seen.zeros, &mut high.zeros);
    reduce(&mut seen, units, 1u32);
    reduce(&mut high, units, 1u32);
    if UNIT_POS == 0u32 {
        let at = tensor * WORDS;
        join(status, at, seen.above, high.above);
        join(status, at + 2, seen.before, high.before);
        join(status, at + 4, seen.after, high.after);
        join(status, at + 6, seen.zeros, high.zeros);
        status[at + 8] = seen.max;
        status[at + 9] = NARROW;
        status[at + 10] = u32::reinterpret(seen.small);
        status[at + 11] = 0u32;
        status[at + 12] = u32::reinterpret(seen.medium);
        status[at + 13] = 0u32;
        status[at + 14] = u32::reinterpret(seen.big);
        status[at + 15] = 0u32;
    }
}

/// Adds to a sum of two words.
#[cube]
fn carry(low: &mut u32, high: &mut u32, more: u32) {
    let sum = *low + more;
    *high += select(sum < more, 1u32, 0u32);
    *low = sum;
}

/// Moves all but 16 bits to the upper word, so that sums of as many as a cube has units do not wrap.
#[cube]
fn split(low: &mut u32, high: &mut u32) {
    let whole = *low;
    *high = *high << 16u32 | whole >> 16u32;
    *low = whole & 0xFFFFu32;
}

/// Puts both together again.
#[cube]
fn join(words: &mut [u32], at: usize, low: u32, high: u32) {
    let high = high + (low >> 16u32);
    words[at] = high << 16u32 | (low & 0xFFFFu32);
    words[at + 1] = high >> 16u32;
}

/// One cube: 1 if a value of any tensor is not finite after scaling, else 0, and the L2 norm of those that are.
#[cube(launch_unchecked)]
pub fn verdict(status: &[u32], output: &mut [f32], tensors: u32, #[comptime] units: u32) {
    let mut seen = Seen::new();
    let mut tensor = UNIT_POS;
    while tensor < tensors {
        let at = tensor as usize * WORDS;
        seen.max = max(
            seen.max,
            status[at + 2] | status[at + 3] | status[at + 4] | status[at + 5],
        );
        seen.small += f32::reinterpret(status[at + 10]);
        seen.medium += f32::reinterpret(status[at + 12]);
        seen.big += f32::reinterpret(status[at + 14]);
        tensor += units;
    }
    seen.max = min(seen.max, 1u32);
    reduce(&mut seen, units, 1u32);
    if UNIT_POS == 0u32 {
        // In two steps each: the square of either power is no f32.
        let big = comptime!(2f32.powi(NARROW_BIG));
        let small = comptime!(2f32.powi(-NARROW_SMALL));
        let medium = seen.medium + seen.small * small * small;
        let mut norm = medium.sqrt();
        if seen.medium == 0.0f32 {
            norm = seen.small.sqrt() * small;
        }
        if seen.big > 0.0f32 {
            norm = (seen.big + medium * big * big).sqrt() * comptime!(2f32.powi(-NARROW_BIG));
        }
        output[0] = select(seen.max > 0u32, 1.0f32, 0.0f32);
        output[1] = norm;
    }
}

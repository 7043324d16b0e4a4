//! The last reduction: the rows of each tensor into what `Status` describes.

use cubecl::prelude::*;

use super::observe::{Measures, ROW, reduce};
use crate::status::{COUNT_BASE, FIELDS};

/// Units of a cube.
pub const UNITS: u32 = 64;

/// Rows of a tensor that one unit adds up as fast as a cube would.
pub const FEW: usize = 16;

/// Bits of a count that are left out of its high part: below 2^44 values and 2^20 rows, neither these nor the high parts wrap when they are added up.
pub const LOW: u32 = 12;

/// So many units for each tensor, a cube or one, from the tensor at place `first` on. Its first row and how many it has are words of the table,
/// from word `from` on.
#[cube(launch_unchecked)]
pub fn finish_status(
    partials: &[u32],
    status: &mut [f32],
    table: &[u32],
    from: u32,
    first: u32,
    #[comptime] units: u32,
) {
    let tensor = ABSOLUTE_POS / units as usize + first as usize;
    let unit = ABSOLUTE_POS as u32 % units;
    // A cube's last units may have none; those of a whole cube wait for one another, and have.
    // A branch of the compiler's, around one of the kernel's.
    #[allow(clippy::collapsible_if)]
    if comptime!(units == 1) {
        if tensor >= status.len() / FIELDS {
            terminate!();
        }
    }
    let entry = from as usize + 2 * tensor;
    let end = table[entry] + table[entry + 1];
    let mut measures = Measures::new();
    let mut high = Measures::new();
    let mut row = table[entry] + unit;
    while row < end {
        let one = Measures::read(partials, row as usize * ROW);
        measures.add(&one);
        high.above += one.above >> LOW;
        high.before += one.before >> LOW;
        high.after += one.after >> LOW;
        high.zeros += one.zeros >> LOW;
        row += units;
    }
    reduce(&mut measures, units, 1u32);
    reduce(&mut high, units, 1u32);
    if unit == 0u32 {
        let at = tensor * FIELDS;
        put_count(status, at, measures.above, high.above);
        put_count(status, at + 2, measures.before, high.before);
        put_count(status, at + 4, measures.after, high.after);
        put_count(status, at + 6, measures.zeros, high.zeros);
        // Powers of two by their exponents, limited to those that f32 has: the sum is zero or vanishes where they are not.
        let unit = max(measures.max >> 23u32, 1u32);
        let small = power(max(SMALL, unit + 1u32) - unit);
        let medium = power(max(MEDIUM, unit + 1u32) - unit);
        let big = power(min(BIG - unit, 254u32));
        let squares = measures.small * small * small
            + measures.medium * medium * medium
            + measures.big * big * big;
        status[at + 8] = f32::reinterpret(measures.max);
        status[at + 9] = power(unit);
        status[at + 10] = squares.sqrt();
    }
}

/// Exponents of what the sums of squares are in units of, with the bias of a quotient.
const SMALL: u32 = (254 - super::observe::SMALL_EXPONENT) as u32;
const MEDIUM: u32 = 254;
const BIG: u32 = (254 - super::observe::BIG_EXPONENT) as u32;

#[cube]
fn power(exponent: u32) -> f32 {
    f32::reinterpret(exponent << 23u32)
}

/// Writes a sum of counts as multiples of `COUNT_BASE` and the rest: of the sum, which may have wrapped, and of that of the counts' high parts.
#[cube]
pub fn put_count(fields: &mut [f32], at: usize, sum: u32, high: u32) {
    // Wraps back to the sum of the low parts.
    let low = sum - (high << LOW);
    let high = high + (low >> LOW);
    let bits = comptime!(COUNT_BASE.ilog2() - LOW);
    let rest = (high & comptime!((1u32 << bits) - 1)) << LOW | (low & comptime!((1u32 << LOW) - 1));
    fields[at] = f32::cast_from(high >> bits);
    fields[at + 1] = f32::cast_from(rest);
}

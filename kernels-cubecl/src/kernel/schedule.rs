//! The next loss scale, and what it decides: the rule of the host, in kernels.

use cubecl::prelude::*;

use crate::step::{ROW, UNDECIDED, column};
use crate::{UpdateRule, clip, rule, status::FIELDS};

/// Units of a cube.
pub const UNITS: u32 = 256;

/// Counts a step with gradients of these rows, and moves the scale: one cube. `border` has nothing, or the rows of what came to the border, and
/// then maybe those of what left it again; `largest` over the scale overflows there.
#[cube(launch_unchecked)]
#[allow(clippy::manual_memcpy, clippy::len_zero)] // what CubeCL has
pub fn advance(
    state: &[u32],
    rows: &[f32],
    border: &Sequence<Box<[f32]>>,
    next: &mut [u32],
    largest: f32,
    #[comptime] units: u32,
) {
    let mut found = seen(rows, units);
    if comptime!(border.len() > 1) {
        found |= (seen(&border[1], units) & BAD) * GIVEN;
    }
    // Once for both: ptxas would spill a register of what is between.
    let found = joined(found, units, true);
    let mut spares = false.runtime();
    if comptime!(border.len() == 1) {
        // Half precision may have given what is not finite: then what has overflowed says nothing.
        spares = rule::is_bad(&border[0], 0usize);
    } else if comptime!(border.len() > 1) {
        spares = rule::spares(&border[0], found & GIVEN != 0u32, state, largest);
    }
    if UNIT_POS == 0u32 {
        for at in 0..state.len() {
            next[at] = state[at];
        }
        let is_zero = found & SOME == 0u32;
        rule::advance(state, next, found & BAD != 0u32, is_zero, spares);
    }
}

/// A bit: a value is not finite.
const BAD: u32 = 1;
/// One is finite, and not zero.
const SOME: u32 = 2;
/// One that half precision has given is not finite.
const GIVEN: u32 = 4;

/// What those of the rows show that are this unit's.
#[cube]
fn seen(rows: &[f32], #[comptime] units: u32) -> u32 {
    let mut seen = 0u32;
    let mut row = UNIT_POS as usize;
    while row < rows.len() / FIELDS {
        seen |= select(rule::is_bad(rows, row), BAD, 0u32);
        seen |= select(rule::is_zero(rows, row), 0u32, SOME);
        row += units as usize;
    }
    seen
}

/// The bits that units of the cube have, or else the largest of their numbers, to all of them.
#[cube]
fn joined(own: u32, #[comptime] units: u32, #[comptime] are_bits: bool) -> u32 {
    let mut all = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let unit = UNIT_POS as usize;
    all[unit] = own;
    sync_cube();
    let mut distance = comptime!(units / 2).runtime();
    while distance > 0u32 {
        if UNIT_POS < distance {
            let other = all[unit + distance as usize];
            all[unit] = match comptime!(are_bits) {
                true => all[unit] | other,
                false => max(all[unit], other),
            };
        }
        sync_cube();
        distance /= 2u32;
    }
    all[0]
}

/// The factors by which gradients are clipped: a cube for each group of one norm, and a unit for each gradient that is in none.
#[cube(launch_unchecked)]
pub fn factors(table: &[u32], rows: &[u32], factors: &mut [f32], #[comptime] units: u32) {
    let unit = UNIT_POS as usize;
    let own = 3 * unit;
    own_factors(table, rows, factors, units);
    let mut group = CUBE_POS;
    while group < clip::groups(table.len(), factors.len()) {
        let (begin, end) = clip::members(table, factors.len(), group);
        let mut largest = 0u32;
        let mut at = begin + unit;
        while at < end {
            let (exponent, _mantissa) = clip::norm_of(rows, table[at] as usize);
            largest = max(largest, exponent);
            at += units as usize;
        }
        let largest = joined(largest, units, false);
        let mut sums = Shared::<[u32]>::new_slice(comptime!(3 * units as usize));
        for word in 0..3 {
            sums[own + word] = 0u32;
        }
        at = begin + unit;
        while at < end {
            let norm = clip::norm_of(rows, table[at] as usize);
            clip::add_square(&mut sums, own, norm, largest);
            at += units as usize;
        }
        sync_cube();
        let mut distance = comptime!(units / 2).runtime();
        while distance > 0u32 {
            if UNIT_POS < distance {
                let other = own + 3 * distance as usize;
                let words = (sums[other], sums[other + 1], sums[other + 2]);
                clip::add_words(&mut sums, own, words);
            }
            sync_cube();
            distance /= 2u32;
        }
        if UNIT_POS == 0u32 {
            sums[0] = clip::joint_factor(table, begin, largest, &sums).to_bits();
        }
        sync_cube();
        let joint = f32::from_bits(sums[0]);
        at = begin + unit;
        while at < end {
            factors[table[at] as usize] = joint;
            at += units as usize;
        }
        // The next group writes there.
        sync_cube();
        group += CUBE_COUNT;
    }
}

/// The factors of gradients that are in no group.
#[cube]
fn own_factors(table: &[u32], rows: &[u32], factors: &mut [f32], #[comptime] units: u32) {
    let mut gradient = ABSOLUTE_POS;
    while gradient < factors.len() {
        if !clip::is_joint(table, gradient) {
            factors[gradient] = clip::own_factor(table, rows, gradient);
        }
        gradient += CUBE_COUNT * units as usize;
    }
}

/// Decides rows of an update, a unit for each. `factors` has nothing, or the factors of all gradients.
#[cube(launch_unchecked)]
#[allow(clippy::manual_memcpy, clippy::len_zero)]
pub fn decide(
    undecided: &[u32],
    state: &[u32],
    factors: &Sequence<Box<[f32]>>,
    rows: &mut [f32],
    #[comptime] rule: UpdateRule,
) {
    let (from, to) = (ABSOLUTE_POS * UNDECIDED, ABSOLUTE_POS * ROW);
    if to < rows.len() {
        for at in 0..ROW {
            rows[to + at] = f32::reinterpret(undecided[from + at]);
        }
        rule::decide(rows, to, state, undecided[from + ROW], rule.runtime());
        if comptime!(factors.len() > 0) {
            let gradient = undecided[from + ROW + 1] as usize;
            rows[to + column::SCALE] *= factors[0][gradient];
        }
    }
}

//! The next loss scale, and what it decides: the rule of the host, in kernels.

use cubecl::prelude::*;

use crate::step::{ROW, UNDECIDED, column};
use crate::{UpdateRule, clip::clip_factor, rule, status::FIELDS};

/// Counts a step with gradients of these rows, and moves the scale: one unit. `border` has nothing, or the rows of what came to the border, and
/// then maybe those of what left it again; `largest` over the scale overflows there.
#[cube(launch_unchecked)]
#[allow(clippy::manual_memcpy, clippy::len_zero)] // what CubeCL has
pub fn advance(
    state: &[u32],
    rows: &[f32],
    border: &Sequence<Box<[f32]>>,
    next: &mut [u32],
    largest: f32,
) {
    let mut skipped = false.runtime();
    let mut is_zero = true.runtime();
    for row in 0..rows.len() / FIELDS {
        skipped = skipped || rule::is_bad(rows, row);
        is_zero = is_zero && rule::is_zero(rows, row);
    }
    let mut spares = false.runtime();
    if comptime!(border.len() > 0) {
        let mut given = true.runtime();
        if comptime!(border.len() > 1) {
            given = false;
            for row in 0..border[1].len() / FIELDS {
                given = given || rule::is_bad(&border[1], row);
            }
        }
        spares = rule::spares(&border[0], given, state, largest);
    }
    for at in 0..state.len() {
        next[at] = state[at];
    }
    rule::advance(state, next, skipped, is_zero, spares);
}

/// Decides rows of an update, a unit for each.
///
/// `clip` has nothing, or a table of how gradients are clipped and the rows of their status.
#[cube(launch_unchecked)]
#[allow(clippy::manual_memcpy, clippy::len_zero)]
pub fn decide(
    undecided: &[u32],
    state: &[u32],
    clip: &Sequence<Box<[u32]>>,
    rows: &mut [f32],
    #[comptime] rule: UpdateRule,
) {
    let (from, to) = (ABSOLUTE_POS * UNDECIDED, ABSOLUTE_POS * ROW);
    if to < rows.len() {
        for at in 0..ROW {
            rows[to + at] = f32::reinterpret(undecided[from + at]);
        }
        rule::decide(rows, to, state, undecided[from + ROW], rule.runtime());
        if comptime!(clip.len() > 0) {
            let gradient = undecided[from + ROW + 1] as usize;
            rows[to + column::SCALE] *= clip_factor(&clip[0], &clip[1], gradient);
        }
    }
}

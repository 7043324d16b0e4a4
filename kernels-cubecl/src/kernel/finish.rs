//! The last reduction: the rows of each tensor's cubes into its status words.

use cubecl::prelude::*;

use super::observe::{HEAD, ROW, Seen, reduce};
use crate::status::{NARROW, WORDS};

/// One cube for each tensor, from the tensor at place `from` on.
#[cube(launch_unchecked)]
pub(crate) fn finish_status(
    partials: &[u32],
    status: &mut [u32],
    from: u32,
    #[comptime] units: u32,
) {
    let tensor = CUBE_POS + from as usize;
    let first = partials[tensor * HEAD] as usize;
    let cubes = partials[tensor * HEAD + 1];
    let mut seen = Seen::new();
    let mut row = UNIT_POS;
    while row < cubes {
        let at = first + row as usize * ROW;
        seen.before += partials[at];
        seen.after += partials[at + 1];
        seen.zeros += partials[at + 2];
        seen.max = max(seen.max, partials[at + 3]);
        seen.small += f32::reinterpret(partials[at + 4]);
        seen.medium += f32::reinterpret(partials[at + 5]);
        seen.big += f32::reinterpret(partials[at + 6]);
        row += units;
    }
    reduce(&mut seen, units);
    if UNIT_POS == 0u32 {
        let at = tensor * WORDS;
        status[at] = 0u32;
        status[at + 1] = 0u32;
        status[at + 2] = seen.before;
        status[at + 3] = 0u32;
        status[at + 4] = seen.after;
        status[at + 5] = 0u32;
        status[at + 6] = seen.zeros;
        status[at + 7] = 0u32;
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

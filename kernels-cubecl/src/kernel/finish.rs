//! The last reduction: the rows of each tensor's cubes into its status words.

use cubecl::prelude::*;

use super::observe::{ROW, Seen, reduce};

/// Words of a tensor in the status; those of `Row::words`, floats as f32 bits.
const WORDS: usize = 16;

/// One cube for each tensor. `rows` is the room that each tensor has in `partials`.
#[cube(launch_unchecked)]
pub(crate) fn finish_status(
    partials: &[u32],
    status: &mut [u32],
    rows: u32,
    #[comptime] units: u32,
) {
    let first = CUBE_POS * rows as usize * ROW;
    let cubes = partials[first];
    let mut seen = Seen::new();
    let mut row = UNIT_POS;
    while row < cubes {
        let at = first + row as usize * ROW;
        seen.before += partials[at + 1];
        seen.after += partials[at + 2];
        seen.zeros += partials[at + 3];
        seen.max = max(seen.max, partials[at + 4]);
        seen.small += f32::reinterpret(partials[at + 5]);
        seen.medium += f32::reinterpret(partials[at + 6]);
        seen.big += f32::reinterpret(partials[at + 7]);
        row += units;
    }
    reduce(&mut seen, units);
    if UNIT_POS == 0u32 {
        let at = CUBE_POS * WORDS;
        status[at] = 0u32;
        status[at + 1] = 0u32;
        status[at + 2] = seen.before;
        status[at + 3] = 0u32;
        status[at + 4] = seen.after;
        status[at + 5] = 0u32;
        status[at + 6] = seen.zeros;
        status[at + 7] = 0u32;
        status[at + 8] = seen.max;
        // Says that the floats are f32: no f64 that is written here has this upper half.
        status[at + 9] = 0xFFFF_FFFFu32;
        status[at + 10] = u32::reinterpret(seen.small);
        status[at + 11] = 0u32;
        status[at + 12] = u32::reinterpret(seen.medium);
        status[at + 13] = 0u32;
        status[at + 14] = u32::reinterpret(seen.big);
        status[at + 15] = 0u32;
    }
}

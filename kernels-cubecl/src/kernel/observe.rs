//! What one unit sees, and how a cube adds it up.

use cubecl::prelude::*;

use crate::status::{NARROW_BIG, NARROW_SMALL};

/// Words of a tensor's head: where its rows begin, and how many they are.
pub(crate) const HEAD: usize = 2;
/// Words of a cube's row: three counts, largest magnitude, three sums.
pub(crate) const ROW: usize = 7;

/// Bits of 2^47: magnitudes above are squared at a fraction of their size.
const BIG: u32 = (127 + 47) << 23;
const BIG_SCALE: f32 = f32::from_bits(((127 + NARROW_BIG) as u32) << 23);
/// Bits of 2^-63: magnitudes below are squared at a multiple of their size.
const SMALL: u32 = (127 - 63) << 23;
const SMALL_SCALE: f32 = f32::from_bits(((127 + NARROW_SMALL) as u32) << 23);

#[derive(CubeType)]
pub(crate) struct Seen {
    pub before: u32,
    pub after: u32,
    pub zeros: u32,
    pub max: u32,
    pub small: f32,
    pub medium: f32,
    pub big: f32,
}

#[cube]
impl Seen {
    pub fn new() -> Seen {
        Seen {
            before: 0u32.runtime(),
            after: 0u32.runtime(),
            zeros: 0u32.runtime(),
            max: 0u32.runtime(),
            small: 0.0f32.runtime(),
            medium: 0.0f32.runtime(),
            big: 0.0f32.runtime(),
        }
    }
}

/// Looks at one value before and after scaling.
///
/// By its bits: WGSL compilers may assume that infinities and NaN do not occur in arithmetic.
#[cube]
pub(crate) fn observe(seen: &mut Seen, scaled: f32, value: f32) {
    let before = u32::reinterpret(scaled) & 0x7FFF_FFFFu32;
    let bits = u32::reinterpret(value) & 0x7FFF_FFFFu32;
    let bad = bits >= 0x7F80_0000u32;
    seen.before += select(before >= 0x7F80_0000u32, 1u32, 0u32);
    seen.after += select(bad, 1u32, 0u32);
    seen.zeros += select(bits == 0u32, 1u32, 0u32);

    let bits = select(bad, 0u32, bits);
    seen.max = max(seen.max, bits);
    let big = bits > BIG;
    let small = bits < SMALL;
    let scale = select(big, BIG_SCALE, select(small, SMALL_SCALE, 1.0f32));
    let magnitude = f32::reinterpret(bits) * scale;
    let square = magnitude * magnitude;
    seen.big += select(big, square, 0.0f32);
    seen.small += select(small, square, 0.0f32);
    seen.medium += select(big || small, 0.0f32, square);
}

/// Adds one unit's sums to another's.
#[cube]
pub(crate) fn add(seen: &mut Seen, other: &Seen) {
    seen.before += other.before;
    seen.after += other.after;
    seen.zeros += other.zeros;
    seen.max = max(seen.max, other.max);
    seen.small += other.small;
    seen.medium += other.medium;
    seen.big += other.big;
}

/// Adds up what the units of a cube have seen; the sum is unit 0's. `units` is a power of two.
#[cube]
pub(crate) fn reduce(seen: &mut Seen, #[comptime] units: u32) {
    let mut counts = Shared::<[u32]>::new_slice(comptime!(4 * units as usize));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(3 * units as usize));
    let unit = UNIT_POS as usize;
    counts[4 * unit] = seen.before;
    counts[4 * unit + 1] = seen.after;
    counts[4 * unit + 2] = seen.zeros;
    counts[4 * unit + 3] = seen.max;
    sums[3 * unit] = seen.small;
    sums[3 * unit + 1] = seen.medium;
    sums[3 * unit + 2] = seen.big;
    sync_cube();

    let steps = comptime!(units.ilog2());
    #[unroll]
    for step in 0..steps {
        let distance = comptime!((units >> (step + 1)) as usize);
        if unit < distance {
            let other = unit + distance;
            counts[4 * unit] += counts[4 * other];
            counts[4 * unit + 1] += counts[4 * other + 1];
            counts[4 * unit + 2] += counts[4 * other + 2];
            counts[4 * unit + 3] = max(counts[4 * unit + 3], counts[4 * other + 3]);
            sums[3 * unit] += sums[3 * other];
            sums[3 * unit + 1] += sums[3 * other + 1];
            sums[3 * unit + 2] += sums[3 * other + 2];
        }
        sync_cube();
    }

    seen.before = counts[0];
    seen.after = counts[1];
    seen.zeros = counts[2];
    seen.max = counts[3];
    seen.small = sums[0];
    seen.medium = sums[1];
    seen.big = sums[2];
}

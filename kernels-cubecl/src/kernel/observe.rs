//! What one unit sees, and how the units of a cube add it up.

use cubecl::prelude::*;

/// Words of a row: four counts, largest magnitude, three sums.
pub const ROW: usize = 8;

const INFINITY: u32 = 0x7F80_0000;
/// Bits of 2^47: magnitudes above are squared at a fraction of their size, so that no square exceeds 2^94, and no sum of up to
/// 2^32 of them f32 (J. L. Blue, "A Portable Fortran Program to Find the Euclidean Norm of a Vector", 1978).
pub const BIG: u32 = (127 + 47) << 23;
pub const BIG_EXPONENT: i32 = -81;
const BIG_SCALE: f32 = f32::from_bits(((127 + BIG_EXPONENT) as u32) << 23);
/// Bits of 2^-63: magnitudes below are squared at a multiple of their size. The smallest square is 2^-148.
const SMALL: u32 = (127 - 63) << 23;
pub const SMALL_EXPONENT: i32 = 75;
const SMALL_SCALE: f32 = f32::from_bits(((127 + SMALL_EXPONENT) as u32) << 23);
/// Bits of 2^-47: what vanishes when it is squared does not count beside a magnitude from here on.
const FAIR: u32 = (127 - 47) << 23;

#[derive(CubeType)]
pub struct Measures {
    pub above: u32,
    pub before: u32,
    pub after: u32,
    pub zeros: u32,
    pub max: u32,
    pub small: f32,
    pub medium: f32,
    pub big: f32,
}

#[cube]
impl Measures {
    pub fn new() -> Measures {
        Measures {
            above: 0u32.runtime(),
            before: 0u32.runtime(),
            after: 0u32.runtime(),
            zeros: 0u32.runtime(),
            max: 0u32.runtime(),
            small: 0.0f32.runtime(),
            medium: 0.0f32.runtime(),
            big: 0.0f32.runtime(),
        }
    }

    /// As words: in the order of the fields, from `at` on.
    pub fn read(words: &[u32], at: usize) -> Measures {
        Measures {
            above: words[at],
            before: words[at + 1],
            after: words[at + 2],
            zeros: words[at + 3],
            max: words[at + 4],
            small: f32::reinterpret(words[at + 5]),
            medium: f32::reinterpret(words[at + 6]),
            big: f32::reinterpret(words[at + 7]),
        }
    }

    pub fn write(&self, words: &mut [u32], at: usize) {
        words[at] = self.above;
        words[at + 1] = self.before;
        words[at + 2] = self.after;
        words[at + 3] = self.zeros;
        words[at + 4] = self.max;
        words[at + 5] = u32::reinterpret(self.small);
        words[at + 6] = u32::reinterpret(self.medium);
        words[at + 7] = u32::reinterpret(self.big);
    }

    pub fn add(&mut self, other: &Measures) {
        self.above += other.above;
        self.before += other.before;
        self.after += other.after;
        self.zeros += other.zeros;
        self.max = max(self.max, other.max);
        self.small += other.small;
        self.medium += other.medium;
        self.big += other.big;
    }
}

/// The bits of a magnitude. By bits: WGSL compilers may assume that infinities and NaN do not occur in arithmetic.
#[cube]
pub fn magnitude(value: f32) -> u32 {
    u32::reinterpret(value) & 0x7FFF_FFFFu32
}

/// Whether values whose largest magnitude is this must be looked at one by one: their squares may leave the range of
/// f32, or one of them is at `limit`.
#[cube]
pub fn is_special(max: u32, limit: u32) -> bool {
    max >= limit || (max != 0u32 && max < FAIR)
}

/// Looks at one value before and after scaling.
#[cube]
pub fn observe(measures: &mut Measures, scaled: f32, value: f32, edge: u32) {
    let bits = magnitude(value);
    let bad = bits >= INFINITY;
    measures.above += select(bits >= edge, 1u32, 0u32);
    measures.before += select(magnitude(scaled) >= INFINITY, 1u32, 0u32);
    measures.after += select(bad, 1u32, 0u32);

    let bits = select(bad, 0u32, bits);
    measures.max = max(measures.max, bits);
    let big = bits > BIG;
    let small = bits < SMALL;
    let scale = select(big, BIG_SCALE, select(small, SMALL_SCALE, 1.0f32));
    let magnitude = f32::reinterpret(bits) * scale;
    let square = magnitude * magnitude;
    measures.big += select(big, square, 0.0f32);
    measures.small += select(small, square, 0.0f32);
    measures.medium += select(big || small, 0.0f32, square);
}

/// Adds up what the units of a cube have measured: those of each plane, where the device has planes of so many, and then the planes. The sum is
/// whole in the first unit. `units` and `plane` are powers of two.
#[cube]
#[allow(clippy::manual_is_multiple_of)]
pub fn reduce(measures: &mut Measures, #[comptime] units: u32, #[comptime] plane: u32) {
    if comptime!(plane > 1) {
        reduce_plane(measures, plane);
    }
    let planes = comptime!(units / plane);
    if comptime!(planes > 1) {
        let mut all = Shared::<[u32]>::new_slice(comptime!(ROW * planes as usize));
        // The first unit of each plane has that plane's sum.
        let leads = UNIT_POS % plane == 0u32;
        let own = UNIT_POS / plane;
        let mut distance = comptime!(planes / 2).runtime();
        if leads {
            measures.write(&mut all, own as usize * ROW);
        }
        sync_cube();
        while distance > 0u32 {
            if leads && own < distance {
                measures.add(&Measures::read(&all, (own + distance) as usize * ROW));
                measures.write(&mut all, own as usize * ROW);
            }
            sync_cube();
            distance /= 2u32;
        }
    }
}

/// Adds up what the units of a plane have measured, in all of them.
#[cube]
fn reduce_plane(measures: &mut Measures, #[comptime] plane: u32) {
    let steps = comptime!(plane.ilog2());
    #[unroll]
    for step in 0..steps {
        let mask = comptime!(1u32 << step);
        measures.max = max(measures.max, plane_shuffle_xor(measures.max, mask));
        measures.zeros += plane_shuffle_xor(measures.zeros, mask);
        measures.medium += plane_shuffle_xor(measures.medium, mask);
    }
    // Most have found nothing special.
    let counts = measures.above | measures.before | measures.after;
    if plane_any(counts != 0u32 || measures.small + measures.big > 0.0f32) {
        #[unroll]
        for step in 0..steps {
            let mask = comptime!(1u32 << step);
            measures.above += plane_shuffle_xor(measures.above, mask);
            measures.before += plane_shuffle_xor(measures.before, mask);
            measures.after += plane_shuffle_xor(measures.after, mask);
            measures.small += plane_shuffle_xor(measures.small, mask);
            measures.big += plane_shuffle_xor(measures.big, mask);
        }
    }
}

//! Sums of 10^7 squares, as accurate as one in f64.

use crate::{create::floats, host, random::Bits, system::System};

const LENGTH: usize = 10_000_000;

/// Magnitudes from 2^-40 to 2^39, of both signs.
pub fn mixed_magnitudes(system: &System) {
    let mut bits = Bits(150);
    let mut draw = || {
        let draw = bits.draw();
        let exponent = 127 - 40 + (draw >> 32) % 80;
        let fraction = draw as u32 & 0x7F_FFFF;
        f32::from_bits(((draw >> 63) as u32) << 31 | (exponent as u32) << 23 | fraction)
    };
    let values: Vec<f32> = (0..LENGTH).map(|_| draw()).collect();
    let wide: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    let norm = host::norm(&wide);
    drop(wide);
    let tensor = floats(values, [2, LENGTH / 2]);
    // A power of two: no product is rounded.
    system.assert_norm(system.unscale_one(tensor, 0.125).1.norm, norm / 8.0);
}

/// Each small square is less than half a unit in the last place of the large one in f32.
pub fn one_large_then_small(system: &System) {
    let small = 1e-4f32;
    let mut values = vec![small; LENGTH];
    values[0] = 1.0;
    let row = system.inspect_one(floats(values, [LENGTH]));
    let expected = (1.0 + (LENGTH - 1) as f64 * f64::from(small).powi(2)).sqrt();
    system.assert_norm(row.norm, expected);
}

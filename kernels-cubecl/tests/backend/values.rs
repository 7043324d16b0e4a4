//! Values of every dtype: special ones, of all magnitudes, and at the edge from which they are counted.

use std::iter::repeat_with;

use super::*;

/// Zero, subnormal, normal and largest values, infinity and NaN of several payloads, of both signs.
pub fn specials(dtype: DType) -> Vec<u64> {
    let (width, fraction) = format(dtype);
    let sign = 1u64 << (width - 1);
    let infinity = (sign - 1) >> fraction << fraction;
    let smallest = 1u64 << fraction;
    let one = infinity >> 1 >> fraction << fraction;
    let around = |bits: u64| [bits - 1, bits, bits + 1];
    let mut magnitudes = vec![0, 1, 2, 3, smallest / 2, infinity - smallest, sign - 1];
    magnitudes.extend([smallest, one, infinity].map(around).concat());
    let quiet = infinity + smallest / 2;
    magnitudes.extend([quiet, quiet + 1]);
    let both = |bits: &u64| [*bits, *bits | sign];
    magnitudes.iter().flat_map(both).collect()
}

/// Under factors that make products overflow, vanish and become NaN.
pub fn special(system: &System) {
    let large = [1.0, 3.0, 65536.0, f32::MAX, f32::INFINITY];
    let mut inverses = large.map(|large| [large, -large, 1.0 / large]).concat();
    let (huge, tiny) = (2f32.powi(127), f32::from_bits(1));
    inverses.extend([0.5, -0.0, f32::NAN, f32::MIN_POSITIVE, huge, tiny]);
    for inverse in inverses {
        let mut case = Case::default();
        let is_kept = |dtype: &DType| !inverse.is_subnormal() || keeps_subnormals(*dtype);
        for dtype in dtypes().into_iter().filter(is_kept) {
            let bits = specials(dtype);
            case.list.push(from_bits(dtype, bits.clone(), [bits.len()]));
            // One by one too: no value hides behind another.
            for bits in bits {
                case.list.push(from_bits(dtype, [bits], [1]));
            }
        }
        case.check(system, inverse);
    }
}

/// Every value that 16 bits can have. What is counted is a product, rounded where the dtype is kept.
pub fn all_halves(system: &System) {
    for dtype in dtypes().into_iter().filter(|dtype| dtype.size() == 2) {
        for (inverse, edge) in [(1.0 / 1024.0, f32::INFINITY), (0.5, 1024.0), (0.3, 1e-4)] {
            let case = Case::default().with(from_bits(dtype, 0..1 << 16, [1 << 16]));
            case.count_from(edge).check(system, inverse);
        }
    }
}

/// Of one size, or of two that may be far apart or not finite: squares leave the range of their dtype, and products that of f32.
pub fn magnitudes(system: &System) {
    let mut bits = Bits(9);
    let mut below = |count: u64| bits.draw() % count;
    for dtype in dtypes() {
        let (width, fraction) = format(dtype);
        let infinite = (1 << (width - 1 - fraction)) - 1;
        for round in 0..30 {
            let both = match round {
                0 => [0; 2],
                1 => [infinite - 1; 2],
                _ => [below(infinite), below(infinite + 1)],
            };
            let kinds = 1 + below(2);
            let value = || {
                let exponent = both[below(kinds) as usize];
                below(2) << (width - 1) | exponent << fraction | below(1 << fraction)
            };
            let length = [1, 3, 33, 64, 1001][round % 5];
            let tensor = from_bits(dtype, repeat_with(value), [length]);
            let inverse = [1.0, 1.0, 8.0, 1e-20][round % 4];
            Case::default().with(tensor).check(system, inverse);
        }
    }
}

/// Both sides of every power of two, which a histogram tells apart, and of the edge: it counts, and so does what is not finite.
pub fn edges(system: &System) {
    let mut values = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    values.extend([f32::MAX, f32::MIN_POSITIVE]);
    for exponent in -45..=20 {
        let power = 2f32.powi(exponent);
        values.extend([power, -power, power.next_down(), power.next_up()]);
    }
    for edge in [4.0, 0.0, f32::MAX, f32::INFINITY] {
        for inverse in [1.0, 0.5] {
            let case = Case::default().with(floats(values.clone(), [values.len()]));
            case.count_from(edge * inverse).check(system, inverse);
        }
    }
}

//! Special values of every dtype, under factors that make products overflow, vanish and become NaN.

use burn::tensor::DType;

use crate::create::{format, from_bits};
use crate::device::{dtypes, keeps_subnormals};
use crate::{case::Case, system::System};

/// Zero, subnormal, normal and largest values, infinity and NaN of several payloads, of both signs.
fn specials(dtype: DType) -> Vec<u64> {
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
    let both = |bits| [bits, bits | sign];
    magnitudes.into_iter().flat_map(both).collect()
}

/// Under factors that are special, too.
pub fn every_dtype(system: &System) {
    let large = [1.0, 3.0, 65536.0, f32::MAX, f32::INFINITY];
    let mut inverses = large.map(|large| [large, -large, 1.0 / large]).concat();
    let (huge, tiny) = (2f32.powi(127), f32::from_bits(1));
    inverses.extend([0.5, -0.0, f32::NAN, f32::MIN_POSITIVE, huge, tiny]);
    for inverse in inverses {
        let mut case = Case::new();
        let is_kept = |dtype: &DType| !inverse.is_subnormal() || keeps_subnormals(*dtype);
        for dtype in dtypes().into_iter().filter(is_kept) {
            let bits = specials(dtype);
            case.add(from_bits(dtype, &bits, [bits.len()]));
            // One by one too: no value hides behind another.
            for bits in bits {
                case.add(from_bits(dtype, &[bits], [1]));
            }
        }
        case.check(system, inverse);
    }
}

/// Every value that 16 bits can have.
pub fn all_halves(system: &System) {
    let bits: Vec<u64> = (0..1 << 16).collect();
    for dtype in [DType::F16, DType::BF16] {
        if dtypes().contains(&dtype) {
            let case = Case::new().with(from_bits(dtype, &bits, [bits.len()]));
            case.check(system, 1.0 / 1024.0);
        }
    }
}

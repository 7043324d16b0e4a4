//! Special values of every dtype, under factors that make products overflow, vanish and become NaN.

use burn::tensor::DType;
use burn_amp_kernels::TensorList;

use crate::{
    case::Case,
    create::{format, from_bits},
    device::{dtypes, keeps_subnormals},
    system::System,
};

/// Zero, subnormal, normal and largest values, infinity and NaN of several payloads, of both signs.
fn specials(dtype: DType) -> Vec<u64> {
    let (width, fraction) = format(dtype);
    let sign = 1u64 << (width - 1);
    let infinity = (sign - 1) >> fraction << fraction;
    let smallest = 1u64 << fraction;
    let one = infinity >> 1 >> fraction << fraction;
    let magnitudes = [
        0,
        1,
        2,
        3,
        smallest / 2,
        smallest - 1,
        smallest,
        smallest + 1,
        one - 1,
        one,
        one + 1,
        infinity - smallest,
        infinity - 1,
        infinity,
        infinity + 1,
        infinity + smallest / 2,
        infinity + smallest / 2 + 1,
        sign - 1,
    ];
    magnitudes
        .iter()
        .flat_map(|bits| [*bits, bits | sign])
        .collect()
}

pub fn every_dtype(system: &System) {
    let inverses = [
        1.0,
        -1.0,
        0.5,
        1.0 / 3.0,
        1.0 / 65536.0,
        3.0,
        65536.0,
        f32::from_bits(0x7F00_0000),
        f32::MAX,
        f32::MIN_POSITIVE,
    ];
    for inverse in inverses {
        let mut case = Case::new();
        for dtype in dtypes() {
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

/// Says with `--nocapture` what the device does with them.
pub fn subnormals(system: &System) {
    for dtype in dtypes() {
        let mut list = TensorList::new();
        list.push(from_bits(dtype, &[1, 2, 3], [3]));
        let (products, status) = system.unscale(list, 1.0);
        let status = status.read()[0];
        let values = products.get::<1>(0).into_data().try_cast_as::<f64>();
        let values: Vec<f64> = values.and_then(|data| data.try_to_vec()).expect("floats");
        println!("subnormal {dtype:?} values 1, 2, 3 became {values:?}: {status:?}");
        if keeps_subnormals(dtype) {
            assert!(values.iter().all(|value| *value > 0.0), "{values:?}");
            assert_eq!(status.zeros, 0);
            assert!(status.norm > 0.0 && status.max_abs == values[2]);
        }
        if keeps_subnormals(dtype) {
            let bits = specials(dtype);
            let case = Case::new().with(from_bits(dtype, &bits, [bits.len()]));
            case.check(system, f32::from_bits(1));
        }
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

pub fn zero_and_non_finite_factors(system: &System) {
    for inverse in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let mut case = Case::new();
        for dtype in dtypes() {
            let bits = specials(dtype);
            case.add(from_bits(dtype, &bits, [bits.len()]));
        }
        case.check(system, inverse);
    }
}

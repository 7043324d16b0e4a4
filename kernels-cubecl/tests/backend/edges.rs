//! Values counted from an edge on.

use burn::tensor::DType;

use crate::create::{floats, random};
use crate::device::{device, dtypes};
use crate::{case::Case, system::System};

pub fn every_dtype(system: &System) {
    for dtype in dtypes() {
        for edge in [0.25, 0.5, 1.0, 3.0] {
            let mut case = Case::new().count_from(edge);
            case.add(random(dtype, 60, [70, 33]));
            case.add(random(dtype, 61, [5]));
            case.check(system, 0.5);
        }
    }
}

/// The edge itself counts, and so does what is not finite; what is next below does not.
pub fn at_the_edge(system: &System) {
    let below = f32::from_bits(4f32.to_bits() - 1);
    let values = vec![4.0, -4.0, below, -below, 0.0, f32::INFINITY, f32::NAN, 8.0];
    let case = || Case::new().with(floats(values.clone(), [8]));
    for edge in [4.0, 0.0, f32::MAX, f32::INFINITY] {
        case().count_from(edge).check(system, 1.0);
        case().count_from(edge / 2.0).check(system, 0.5);
    }
}

/// What counts is the value after scaling, and after rounding where the dtype is kept.
pub fn after_rounding(system: &System) {
    if !dtypes().contains(&DType::F16) {
        return;
    }
    let options = (&device(), DType::F16);
    let tensor = burn::tensor::Tensor::<1>::from_data([2049.0f32, 4094.0, 60000.0], options);
    let case = Case::new().with(tensor);
    case.count_from(1024.0).check(system, 0.5);
}

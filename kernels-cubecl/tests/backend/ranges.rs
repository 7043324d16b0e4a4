//! Magnitudes whose squares leave the range of their dtype.

use burn::tensor::DType;

use crate::create::{doubles, floats};
use crate::{case::Case, device::dtypes, system::System};

fn check(system: &System, values: Vec<f32>, inverse: f32) {
    let length = values.len();
    let tensor = floats(values, [length]);
    Case::new().with(tensor).check(system, inverse);
}

/// Of them alone, of some that just fit, and of small values beside a large one or one that is not finite.
pub fn squares_out_of_range(system: &System) {
    let small = vec![1e-30; 500];
    for values in [
        vec![1e30; 1001],
        vec![f32::MAX / 4.0, -f32::MAX / 2.0, f32::MAX / 4.0],
        vec![f32::MAX],
        vec![1e-30; 1001],
        vec![f32::MIN_POSITIVE; 64],
        vec![f32::from_bits(1); 64],
        vec![1e-40; 900],
        [&small[..], &[3e30, -4e30, 0.0]].concat(),
        [&small[..], &[f32::INFINITY, f32::NAN]].concat(),
        vec![f32::INFINITY, f32::NAN, f32::NEG_INFINITY],
    ] {
        check(system, values, 1.0);
    }
    // Finite values whose products are not, and values whose products are too small for any f32.
    check(system, vec![1e38, -2e38, 1.0, f32::NAN], 8.0);
    check(system, vec![1e-30, -1e-30, 1.0, 0.0], 1e-20);
}

/// f64 gradients have a wider range than the squares of any f64.
pub fn doubles_out_of_range(system: &System) {
    if !dtypes().contains(&DType::F64) {
        return;
    }
    let large = [1e99, 1e101, 1e200, -1e300].map(|large: f64| [large, 1.0 / large]);
    let many = large.concat().into_iter().chain([f64::MIN_POSITIVE]);
    let mut lists: Vec<Vec<f64>> = many.map(|value| vec![value; 33]).collect();
    lists.extend([
        vec![f64::MAX / 2.0],
        vec![f64::from_bits(1); 64],
        vec![1e-300, 1e300],
        vec![1e99, 1.1e100],
        vec![1.1e-100, 0.9e-100],
        vec![1e-101, 1e-99, 1.0, 1e99, 1e101],
    ]);
    for values in lists {
        Case::new().with(doubles(values)).check(system, 1.0);
    }
}

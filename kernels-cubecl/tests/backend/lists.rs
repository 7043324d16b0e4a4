//! Lists: of nothing, of many, of several dtypes.

use burn::tensor::{DType, Tensor};
use burn_amp_kernels::TensorList;

use crate::device::{device, dtypes};
use crate::system::{System, list_of};
use crate::{case::Case, create::random, random::Bits};

pub fn empty_list(system: &System) {
    assert!(system.inspect(TensorList::new()).read().is_empty());
    let empty = Tensor::<2>::zeros([0, 3], (&device(), DType::F32));
    for list in [TensorList::new(), list_of([empty.clone(), empty])] {
        assert_eq!(system.histogram(list).elements(), 0);
    }
    let (list, status) = system.unscale(TensorList::new(), 0.5);
    assert!(list.is_empty() && status.read().is_empty());
}

pub fn empty_tensors(system: &System) {
    for dtype in dtypes() {
        let options = (&device(), dtype);
        let (line, solid) = ([0], [2, 0, 4]);
        let empty = || Case::new().with(Tensor::<1>::zeros(line, options));
        let empties = || empty().with(Tensor::<3>::zeros(solid, options));
        empties().check(system, 0.5);
        // First, between and last.
        let mut case = empties();
        case.add(random(dtype, 80, [5]));
        case.add(Tensor::<2>::zeros([0, 0], options));
        case.add(random(dtype, 81, [6]));
        case.add(Tensor::<1>::zeros(line, options));
        case.check(system, 0.5);
    }
}

/// Random dtypes, shapes and views beside each other, some of them empty, by factors of all sizes.
pub fn random_lists(system: &System) {
    let (dtypes, mut bits) = (dtypes(), Bits(1));
    let mut below = |count: usize| (bits.draw() % count as u64) as usize;
    for round in 0..40 {
        let mut case = Case::new();
        // More than a launch takes, and a few.
        let count = if round == 0 { 300 } else { below(12) };
        for _ in 0..count {
            let dtype = dtypes[below(dtypes.len())];
            let [rows, columns, seed] = [7, 400, 1 << 30].map(&mut below);
            let tensor = random(dtype, seed as u64, [rows, columns]);
            case.add(match below(4) {
                1 => tensor.swap_dims(0, 1),
                2 => tensor.flip([1]),
                3 if rows > 1 => tensor.narrow(0, 1, rows - 1),
                _ => tensor,
            });
        }
        let fraction = 1.0 + below(8) as f32 / 8.0;
        case.check(system, fraction * 2f32.powi(below(33) as i32 - 24));
    }
}

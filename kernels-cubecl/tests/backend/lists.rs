//! Lists: of nothing, of many, of several dtypes.

use burn::tensor::Tensor;
use burn_amp_kernels::TensorList;

use crate::{
    case::Case,
    create::random,
    device::{device, dtypes},
    random::Bits,
    system::System,
};

pub fn empty_list(system: &System) {
    assert!(system.inspect(TensorList::new()).read().is_empty());
    let (list, status) = system.unscale(TensorList::new(), 0.5);
    assert!(list.is_empty() && status.read().is_empty());
}

pub fn empty_tensors(system: &System) {
    for dtype in dtypes() {
        let options = (&device(), dtype);
        let empties = || {
            Case::new()
                .with(Tensor::<1>::zeros([0], options))
                .with(Tensor::<3>::zeros([2, 0, 4], options))
        };
        empties().check(system, 0.5);
        // First, between and last.
        let mut case = empties();
        case.add(random(dtype, 80, [5]));
        case.add(Tensor::<2>::zeros([0, 0], options));
        case.add(random(dtype, 81, [6]));
        case.add(Tensor::<1>::zeros([0], options));
        case.check(system, 0.5);
    }
}

/// Of all dtypes, ranks and some lengths: each row is that of its own tensor.
pub fn three_hundred(system: &System) {
    let dtypes = dtypes();
    let mut case = Case::new();
    for index in 0..300 {
        let dtype = dtypes[index % dtypes.len()];
        let length = index * 7 % 61;
        match index % 3 {
            0 => case.add(random(dtype, index as u64, [length])),
            1 => case.add(random(dtype, index as u64, [length, 2]).transpose()),
            _ => case.add(random(dtype, index as u64, [2, length, 3])),
        }
    }
    case.check(system, 0.1);
}

/// Random dtypes, shapes and views beside each other, some of them empty, by factors of all sizes.
pub fn random_lists(system: &System) {
    let (dtypes, mut bits) = (dtypes(), Bits(1));
    let mut below = |count: usize| (bits.draw() % count as u64) as usize;
    for _ in 0..40 {
        let mut case = Case::new();
        for _ in 0..below(12) {
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

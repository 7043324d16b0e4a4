//! Tensors whose values do not lie in order: views of other memory.

use burn::tensor::{DType, Tensor, s};

use crate::device::{device, dtypes};
use crate::{case::Case, create::random, system::System, views::planes};

pub fn views(system: &System) {
    for dtype in dtypes() {
        let mut case = Case::new();
        let plane = || random(dtype, 50, [37, 53]);
        for view in planes() {
            case.add(view(plane()));
        }
        case.add(plane().transpose().reshape([37 * 53]));
        let solid = || random(dtype, 51, [3, 4, 5, 6]);
        case.add(solid().permute([2, 0, 3, 1]));
        case.add(solid().permute([3, 2, 1, 0]));
        case.add(solid().swap_dims(1, 2).slice(s![1..3, 1..5, 0..3, 2..]));
        let line = || random(dtype, 52, [1000]);
        case.add(line().slice(0..999));
        case.add(line().slice(1..1000));
        case.add(line().slice(501..502));
        case.add(line().flip([0]));
        case.add(random(dtype, 53, [1]).expand([1000]));
        case.add(random(dtype, 54, [1, 1, 1]).expand([7, 3, 11]));
        case.add(random(dtype, 55, [1, 8, 1, 3, 1, 1]).expand([2, 8, 3, 3, 2, 2]));
        case.check(system, 0.7);
    }
}

pub fn steps_and_empties(system: &System) {
    let plane = || random(DType::F32, 60, [37, 53]);
    Case::new()
        .with(plane().slice(s![0..;2, 0..]))
        .with(plane().slice(s![0.., 1..;3]))
        .with(plane().slice(s![4..4, 0..]))
        .with(plane().transpose().slice(s![0.., 9..9]))
        .with(Tensor::<2>::zeros([0, 5], (&device(), DType::F32)))
        .check(system, 0.7);
}

/// A list may hold one memory twice; every entry is multiplied once.
pub fn one_memory_twice(system: &System) {
    for dtype in dtypes() {
        let plane: Tensor<2> = random(dtype, 70, [19, 23]);
        let part = plane.clone().slice(s![5..9, 0..]);
        let turned = plane.clone().transpose();
        let case = Case::new().with(plane.clone()).with(turned);
        case.with(part).with(plane).check(system, 0.7);
    }
}

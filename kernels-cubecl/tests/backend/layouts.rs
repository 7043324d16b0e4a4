//! Lists of tensors of every length, shape and layout: the matrix.

use super::*;

/// Random dtypes, lengths, shapes and views beside each other, some of them empty or of one memory, by factors of all sizes, counted from somewhere
/// on. Lengths are around the blocks in which values are taken, and around the chunks of which threads take one each.
pub fn random_lists(system: &System) {
    let (dtypes, views, mut bits) = (dtypes(), planes(), Bits(1));
    let mut below = |count: usize| (bits.draw() % count as u64) as usize;
    for round in 0..50 {
        let mut case = Case::default();
        if round % 4 > 0 {
            case = case.count_from(2f32.powi(below(12) as i32 - 8) * 1.5);
        }
        // More than a launch takes, and a few.
        let count = if round == 0 { 300 } else { below(12) };
        for index in 0..count {
            let dtype = dtypes[below(dtypes.len())];
            let [rows, columns, seed] = [7, 400, 1 << 30].map(&mut below);
            let around = |length: usize| length + columns % 5 - 2;
            let line = match below(5) {
                _ if round == 0 => Some(index),
                _ if index == 0 && round % 10 == 9 => Some(around(1 << 16)),
                0 | 1 => Some(around(1 << (1 + below(12)))),
                _ => None,
            };
            let view = views.get(below(2 * views.len()));
            let (Some(view), None) = (view, line) else {
                match line {
                    Some(length) => case.list.push(random(dtype, seed as u64, [length])),
                    None => case.list.push(random(dtype, seed as u64, [rows, columns])),
                }
                continue;
            };
            let plane = random(dtype, seed as u64, [9 + rows, 41 + columns % 50]);
            case.list.push(view(plane.clone()));
            // Its memory may be in the list twice, or somebody else holds a view or the whole of it.
            match below(5) {
                0 => case.list.push(plane),
                1 => case.held.push(plane),
                2 => case.held.push(view(plane)),
                3 => case.list.push(views[below(views.len())](plane)),
                _ => (),
            }
        }
        let fraction = 1.0 + below(8) as f32 / 8.0;
        case.check(system, fraction * 2f32.powi(below(33) as i32 - 24));
    }
}

/// Many dimensions, which do not lie in order, are a part of their memory, or repeat it.
pub fn dimensions(system: &System) {
    for dtype in dtypes() {
        let plane = || random(dtype, 50, [37, 53]);
        let solid = || random(dtype, 51, [3, 4, 5, 6]);
        let mut case = Case::default()
            .with(plane().transpose().reshape([37 * 53]))
            .with(plane().slice(s![0..;2, 0..]))
            .with(plane().slice(s![0.., 1..;3]))
            .with(solid().permute([2, 0, 3, 1]))
            .with(solid().swap_dims(1, 2).slice(s![1..3, 1..5, 0..3, 2..]))
            .with(random(dtype, 52, [1000]).slice(501..502))
            .with(random(dtype, 54, [1, 1, 1]).expand([7, 3, 11]))
            .with(random(dtype, 55, [1, 8, 1, 3, 1, 1]).expand([2, 8, 3, 3, 2, 2]))
            .with(random(dtype, 56, [2, 1, 3, 1, 2, 1, 2]));
        // CubeCL 0.11.3 has no tensors of more than 8.
        if !is_cube() {
            let shape = [2, 1, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 2];
            case.list.push(random(dtype, 40, shape));
        }
        case.check(system, 0.7);
    }
}

/// Of no tensors, of tensors without values, and with some of these.
pub fn empty_lists(system: &System) {
    Case::default().check(system, 0.5);
    for dtype in dtypes() {
        let empty = || Tensor::<2>::zeros([0, 3], (&device(), dtype));
        let counts = system.histogram(list_of([empty(), empty()]));
        assert_eq!(counts.elements(), 0);
        let empties = || {
            Case::default()
                .with(empty())
                .with(empty().reshape([0, 0, 4]))
                .with(random(dtype, 60, [53, 37]).slice(s![0.., 9..9]))
        };
        empties().check(system, 0.5);
        // First, between and last.
        let case = empties().with(random(dtype, 80, [5])).with(empty());
        let case = case.with(random(dtype, 81, [6])).with(empty());
        case.check(system, 0.5);
    }
}

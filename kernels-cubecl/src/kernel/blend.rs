//! A weighted sum of two tensors.

use cubecl::prelude::*;

/// `keep * target + add * source` in place of `target`.
#[cube(launch_unchecked)]
pub(crate) fn blend_in_place<S: Float, N: Size>(
    target: &mut [Vector<f32, N>],
    source: &[Vector<S, N>],
    keep: f32,
    add: f32,
) {
    let mut position = ABSOLUTE_POS;
    while position < target.len() {
        target[position] = sum(
            target[position],
            Vector::cast_from(source[position]),
            keep,
            add,
        );
        position += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// `keep * target + add * source` beside `target`.
#[cube(launch_unchecked)]
pub(crate) fn blend_anew<S: Float, N: Size>(
    target: &[Vector<f32, N>],
    source: &[Vector<S, N>],
    output: &mut [Vector<f32, N>],
    keep: f32,
    add: f32,
) {
    let mut position = ABSOLUTE_POS;
    while position < target.len() {
        output[position] = sum(
            target[position],
            Vector::cast_from(source[position]),
            keep,
            add,
        );
        position += CUBE_COUNT * CUBE_DIM as usize;
    }
}

#[cube]
fn sum<N: Size>(
    target: Vector<f32, N>,
    source: Vector<f32, N>,
    keep: f32,
    add: f32,
) -> Vector<f32, N> {
    target * Vector::new(keep) + source * Vector::new(add)
}

//! What is done value by value, and measures nothing.

use cubecl::{ir::ElemType, prelude::*};

/// `keep * target + add * source`, computed in f32; `add * source` if there is no target, which may be the output. With a `scale`, `add` is
/// what it says times that. Where there is a `found_inf` above 0, it is the target.
///
/// WGSL does not say what becomes of values beyond f16; `tests/cast` does: they are infinite.
#[cube(launch_unchecked)]
#[allow(clippy::len_zero)]
pub fn weigh<S: Float, O: Float, N: Size>(
    source: &[Vector<S, N>],
    target: &Sequence<Box<[Vector<O, N>]>>,
    output: &mut [Vector<O, N>],
    keep: f32,
    add: f32,
    scale: &Sequence<Box<[f32]>>,
    found_inf: &Sequence<Box<[f32]>>,
    #[define(S, O)] _dtypes: [ElemType; 2],
) {
    let mut weight = add;
    if comptime!(scale.len() > 0) {
        weight = add * scale[0][0];
    }
    let (keep, add) = (Vector::<f32, N>::new(keep), Vector::<f32, N>::new(weight));
    let mut position = ABSOLUTE_POS;
    while position < source.len() {
        let mut sum = Vector::<f32, N>::cast_from(source[position]) * add;
        if comptime!(target.len() > 0) {
            let target = &target[0];
            let before = Vector::<f32, N>::cast_from(target[position]);
            sum = before * keep + sum;
            if comptime!(found_inf.len() > 0) {
                sum = select(found_inf[0][0] > 0.0f32, before, sum);
            }
        }
        output[position] = Vector::cast_from(sum);
        position += CUBE_COUNT * CUBE_DIM as usize;
    }
}

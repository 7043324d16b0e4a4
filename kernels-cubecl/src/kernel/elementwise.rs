//! What is done value by value, and measures nothing.

use cubecl::prelude::*;

/// Widens `I` to f32, multiplies by `factor`, rounds to `O`.
///
/// WGSL does not say what becomes of values beyond f16; `tests/cast` does: they are infinite.
#[cube(launch_unchecked)]
pub fn mul_cast<I: Float, O: Float, N: Size>(
    input: &[Vector<I, N>],
    output: &mut [Vector<O, N>],
    factor: f32,
) {
    let factor = Vector::<f32, N>::new(factor);
    let mut position = ABSOLUTE_POS;
    while position < input.len() {
        let wide = Vector::<f32, N>::cast_from(input[position]);
        output[position] = Vector::cast_from(wide * factor);
        position += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// `keep * target + add * source`, in `output`, or in place of `target` if there is none.
#[cube(launch_unchecked)]
#[allow(clippy::len_zero)]
pub fn blend<S: Float, N: Size>(
    target: &mut [Vector<f32, N>],
    source: &[Vector<S, N>],
    output: &mut Sequence<Box<[Vector<f32, N>]>>,
    keep: f32,
    add: f32,
) {
    let (keep, add) = (Vector::new(keep), Vector::new(add));
    let mut position = ABSOLUTE_POS;
    while position < source.len() {
        let sum = target[position] * keep + Vector::cast_from(source[position]) * add;
        if comptime!(output.len() == 0) {
            target[position] = sum;
        } else {
            let output = &mut output[0];
            output[position] = sum;
        }
        position += CUBE_COUNT * CUBE_DIM as usize;
    }
}

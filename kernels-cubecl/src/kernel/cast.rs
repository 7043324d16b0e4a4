//! A cast and a multiplication.

use cubecl::prelude::*;

/// Widens `I` to f32, multiplies by `factor`, rounds to `O`.
///
/// WGSL does not say what becomes of values beyond f16; `tests/cast` does: they are infinite.
#[cube(launch_unchecked)]
pub(crate) fn mul_cast<I: Float, O: Float, N: Size>(
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

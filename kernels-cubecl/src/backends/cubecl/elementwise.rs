use cubecl::{client::Client, prelude::*};

use super::{group::vector_width, plan::units};

/// Units of a cube, where the device allows as many.
const UNITS: u32 = 256;
/// Vectors that a unit reads, as long as that makes no more than `MAX_CUBES`.
const VECTORS_PER_UNIT: usize = 4;
const MAX_CUBES: usize = 4096;

/// Cubes, their units, and the width of vectors, for a kernel whose units go over a tensor in steps of all of them.
pub(super) fn spread(client: &Client, elements: usize) -> (CubeCount, CubeDim, usize) {
    let units = units(client, UNITS);
    let vector = vector_width(elements);
    let cubes = (elements / vector).div_ceil(units as usize * VECTORS_PER_UNIT);
    let count = CubeCount::Static(cubes.clamp(1, MAX_CUBES) as u32, 1, 1);
    (count, CubeDim::new_1d(units), vector)
}

//! One pass over a group of tensors of one dtype, each cube at one of them.

use cubecl::prelude::*;

use super::observe::{ROW, Seen, add, observe, reduce};

/// Values that a unit adds up before it adds the sum to its total: keeps long sums accurate.
const BLOCK: u32 = 32;

/// Reads `I`, writes `O` to one buffer that all outputs share.
#[cube(launch_unchecked)]
pub(crate) fn unscale_many<I: Float, O: Float, N: Size>(
    inputs: &Sequence<Box<[Vector<I, N>]>>,
    output: &mut [Vector<O, N>],
    offsets: &Sequence<u32>,
    starts: &Sequence<u32>,
    inverse: &[f32],
    partials: &mut [u32],
    positions: &Sequence<u32>,
    rows: u32,
    #[comptime] units: u32,
) {
    let factor = Vector::<f32, N>::new(inverse[0]);
    let cube = CUBE_POS as u32;
    let mut seen = Seen::new();
    let mut row = 0u32;
    let mut cubes = 0u32;
    #[unroll]
    for i in 0..inputs.len() {
        let first = starts[i];
        let end = starts[i + 1];
        if cube >= first && cube < end {
            let input = &inputs[i];
            let offset = offsets[i];
            cubes = end - first;
            row = positions[i] * rows + (cube - first);
            let length = input.len() as u32;
            let step = cubes * units;
            let mut position = (cube - first) * units + UNIT_POS;
            while position < length {
                let mut block = Seen::new();
                let mut count = 0u32;
                while count < BLOCK && position < length {
                    let scaled = Vector::<f32, N>::cast_from(input[position as usize]);
                    let value = scaled * factor;
                    output[(offset + position) as usize] = Vector::cast_from(value);
                    #[unroll]
                    for lane in 0..N::value() {
                        observe(&mut block, scaled.extract(lane), value.extract(lane));
                    }
                    position += step;
                    count += 1u32;
                }
                add(&mut seen, &block);
            }
        }
    }
    publish(&mut seen, partials, row, cubes, units);
}

/// Overwrites f32 tensors.
#[cube(launch_unchecked)]
pub(crate) fn unscale_in_place<N: Size>(
    tensors: &mut Sequence<Box<[Vector<f32, N>]>>,
    starts: &Sequence<u32>,
    inverse: &[f32],
    partials: &mut [u32],
    positions: &Sequence<u32>,
    rows: u32,
    #[comptime] units: u32,
) {
    let factor = Vector::<f32, N>::new(inverse[0]);
    let cube = CUBE_POS as u32;
    let mut seen = Seen::new();
    let mut row = 0u32;
    let mut cubes = 0u32;
    #[unroll]
    for i in 0..tensors.len() {
        let first = starts[i];
        let end = starts[i + 1];
        if cube >= first && cube < end {
            let tensor = &mut tensors[i];
            cubes = end - first;
            row = positions[i] * rows + (cube - first);
            let length = tensor.len() as u32;
            let step = cubes * units;
            let mut position = (cube - first) * units + UNIT_POS;
            while position < length {
                let mut block = Seen::new();
                let mut count = 0u32;
                while count < BLOCK && position < length {
                    let scaled = tensor[position as usize];
                    let value = scaled * factor;
                    tensor[position as usize] = value;
                    #[unroll]
                    for lane in 0..N::value() {
                        observe(&mut block, scaled.extract(lane), value.extract(lane));
                    }
                    position += step;
                    count += 1u32;
                }
                add(&mut seen, &block);
            }
        }
    }
    publish(&mut seen, partials, row, cubes, units);
}

/// Reads and writes nothing but what it has seen.
#[cube(launch_unchecked)]
pub(crate) fn inspect_many<I: Float, N: Size>(
    inputs: &Sequence<Box<[Vector<I, N>]>>,
    starts: &Sequence<u32>,
    partials: &mut [u32],
    positions: &Sequence<u32>,
    rows: u32,
    #[comptime] units: u32,
) {
    let cube = CUBE_POS as u32;
    let mut seen = Seen::new();
    let mut row = 0u32;
    let mut cubes = 0u32;
    #[unroll]
    for i in 0..inputs.len() {
        let first = starts[i];
        let end = starts[i + 1];
        if cube >= first && cube < end {
            let input = &inputs[i];
            cubes = end - first;
            row = positions[i] * rows + (cube - first);
            let length = input.len() as u32;
            let step = cubes * units;
            let mut position = (cube - first) * units + UNIT_POS;
            while position < length {
                let mut block = Seen::new();
                let mut count = 0u32;
                while count < BLOCK && position < length {
                    let value = Vector::<f32, N>::cast_from(input[position as usize]);
                    #[unroll]
                    for lane in 0..N::value() {
                        observe(&mut block, value.extract(lane), value.extract(lane));
                    }
                    position += step;
                    count += 1u32;
                }
                add(&mut seen, &block);
            }
        }
    }
    publish(&mut seen, partials, row, cubes, units);
}

/// Writes a cube's row: one of `cubes` for its tensor.
#[cube]
fn publish(seen: &mut Seen, partials: &mut [u32], row: u32, cubes: u32, #[comptime] units: u32) {
    reduce(seen, units);
    if UNIT_POS == 0u32 {
        let at = row as usize * ROW;
        partials[at] = cubes;
        partials[at + 1] = seen.before;
        partials[at + 2] = seen.after;
        partials[at + 3] = seen.zeros;
        partials[at + 4] = seen.max;
        partials[at + 5] = u32::reinterpret(seen.small);
        partials[at + 6] = u32::reinterpret(seen.medium);
        partials[at + 7] = u32::reinterpret(seen.big);
    }
}

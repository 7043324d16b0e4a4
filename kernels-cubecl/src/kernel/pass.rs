//! One pass over a group of tensors of one dtype, each cube at one of them.
//!
//! Only what depends on the buffer, a load or a store, stands in the code once for each tensor: what is done with the
//! values stands there once, so that a kernel over 28 tensors compiles about as fast as one over a few.

use cubecl::prelude::*;

use super::observe::{HEAD, ROW, Seen, add, observe, reduce};

/// Vectors that a unit loads before it looks at the first of them.
pub(crate) const LOADS: u32 = 4;
/// Loads that a unit adds up before it adds the sum to its total: keeps long sums accurate.
const BLOCK: u32 = 8;

/// What a unit works at.
#[derive(CubeType)]
struct Share {
    /// Which of the group's tensors.
    tensor: u32,
    /// The tensor's number of vectors.
    length: u32,
    /// The tensor's place in the list.
    place: u32,
    /// The first of the tensor's cubes, and how many it has.
    first: u32,
    cubes: u32,
}

#[cube]
impl Share {
    /// Cubes from one start to the next are at work on one tensor.
    fn find(lengths: &Sequence<u32>, starts: &Sequence<u32>, places: &Sequence<u32>) -> Share {
        let mut share = Share {
            tensor: 0u32.runtime(),
            length: 0u32.runtime(),
            place: 0u32.runtime(),
            first: 0u32.runtime(),
            cubes: 0u32.runtime(),
        };
        #[unroll]
        for i in 0..lengths.len() {
            if CUBE_POS as u32 >= starts[i] {
                share.tensor = i as u32;
                share.length = lengths[i];
                share.place = places[i];
                share.first = starts[i];
                share.cubes = starts[i + 1] - starts[i];
            }
        }
        share
    }

    /// The unit's first vector, of those that it loads at a time.
    fn start(&self, #[comptime] units: u32) -> u32 {
        (CUBE_POS as u32 - self.first) * comptime!(units * LOADS) + UNIT_POS
    }

    /// From one time to the next.
    fn step(&self, #[comptime] units: u32) -> u32 {
        self.cubes * comptime!(units * LOADS)
    }
}

/// Reads `I`, writes `O` to one buffer that all outputs share, each from its offset on, in vectors.
///
/// Here and below: `rows` is the word of `partials` at which the rows of this launch begin, a row for each cube.
#[cube(launch_unchecked)]
pub(crate) fn unscale_many<I: Float, O: Float, N: Size>(
    inputs: &Sequence<Box<[Vector<I, N>]>>,
    output: &mut [Vector<O, N>],
    offsets: &Sequence<u32>,
    lengths: &Sequence<u32>,
    starts: &Sequence<u32>,
    inverse: &[f32],
    partials: &mut [u32],
    places: &Sequence<u32>,
    rows: u32,
    #[comptime] units: u32,
) {
    let factor = Vector::<f32, N>::new(inverse[0]);
    let share = Share::find(lengths, starts, places);
    let mut offset = 0u32.runtime();
    #[unroll]
    for i in 0..offsets.len() {
        if share.tensor == i as u32 {
            offset = offsets[i];
        }
    }
    let mut seen = Seen::new();
    let mut loaded = Array::<Vector<f32, N>>::new(comptime!(LOADS as usize));
    let mut position = share.start(units);
    while position < share.length {
        let mut block = Seen::new();
        let mut count = 0u32;
        while count < BLOCK && position < share.length {
            #[unroll]
            for i in 0..inputs.len() {
                if share.tensor == i as u32 {
                    #[unroll]
                    for load in 0..LOADS {
                        let at = position + load * units;
                        if at < share.length {
                            loaded[load as usize] = Vector::cast_from(inputs[i][at as usize]);
                        }
                    }
                }
            }
            #[unroll]
            for load in 0..LOADS {
                let at = position + load * units;
                if at < share.length {
                    let scaled = loaded[load as usize];
                    let value = scaled * factor;
                    output[(offset + at) as usize] = Vector::cast_from(value);
                    observe_all(&mut block, scaled, value);
                }
            }
            position += share.step(units);
            count += 1u32;
        }
        add(&mut seen, &block);
    }
    publish(&mut seen, partials, &share, rows, units);
}

/// Overwrites f32 tensors.
#[cube(launch_unchecked)]
pub(crate) fn unscale_in_place<N: Size>(
    tensors: &mut Sequence<Box<[Vector<f32, N>]>>,
    lengths: &Sequence<u32>,
    starts: &Sequence<u32>,
    inverse: &[f32],
    partials: &mut [u32],
    places: &Sequence<u32>,
    rows: u32,
    #[comptime] units: u32,
) {
    let factor = Vector::<f32, N>::new(inverse[0]);
    let share = Share::find(lengths, starts, places);
    let mut seen = Seen::new();
    let mut loaded = Array::<Vector<f32, N>>::new(comptime!(LOADS as usize));
    let mut position = share.start(units);
    while position < share.length {
        let mut block = Seen::new();
        let mut count = 0u32;
        while count < BLOCK && position < share.length {
            #[unroll]
            for i in 0..tensors.len() {
                if share.tensor == i as u32 {
                    let tensor = &mut tensors[i];
                    #[unroll]
                    for load in 0..LOADS {
                        let at = position + load * units;
                        if at < share.length {
                            let scaled = tensor[at as usize];
                            tensor[at as usize] = scaled * factor;
                            loaded[load as usize] = scaled;
                        }
                    }
                }
            }
            #[unroll]
            for load in 0..LOADS {
                if position + load * units < share.length {
                    let scaled = loaded[load as usize];
                    observe_all(&mut block, scaled, scaled * factor);
                }
            }
            position += share.step(units);
            count += 1u32;
        }
        add(&mut seen, &block);
    }
    publish(&mut seen, partials, &share, rows, units);
}

/// Reads and writes nothing but what it has seen.
#[cube(launch_unchecked)]
pub(crate) fn inspect_many<I: Float, N: Size>(
    inputs: &Sequence<Box<[Vector<I, N>]>>,
    lengths: &Sequence<u32>,
    starts: &Sequence<u32>,
    partials: &mut [u32],
    places: &Sequence<u32>,
    rows: u32,
    #[comptime] units: u32,
) {
    let share = Share::find(lengths, starts, places);
    let mut seen = Seen::new();
    let mut loaded = Array::<Vector<f32, N>>::new(comptime!(LOADS as usize));
    let mut position = share.start(units);
    while position < share.length {
        let mut block = Seen::new();
        let mut count = 0u32;
        while count < BLOCK && position < share.length {
            #[unroll]
            for i in 0..inputs.len() {
                if share.tensor == i as u32 {
                    #[unroll]
                    for load in 0..LOADS {
                        let at = position + load * units;
                        if at < share.length {
                            loaded[load as usize] = Vector::cast_from(inputs[i][at as usize]);
                        }
                    }
                }
            }
            #[unroll]
            for load in 0..LOADS {
                if position + load * units < share.length {
                    let value = loaded[load as usize];
                    observe_all(&mut block, value, value);
                }
            }
            position += share.step(units);
            count += 1u32;
        }
        add(&mut seen, &block);
    }
    publish(&mut seen, partials, &share, rows, units);
}

#[cube]
fn observe_all<N: Size>(seen: &mut Seen, scaled: Vector<f32, N>, value: Vector<f32, N>) {
    #[unroll]
    for lane in 0..N::value() {
        observe(seen, scaled.extract(lane), value.extract(lane));
    }
}

/// Writes a cube's row, and its tensor's head if it is the first of the tensor's cubes.
#[cube]
fn publish(
    seen: &mut Seen,
    partials: &mut [u32],
    share: &Share,
    rows: u32,
    #[comptime] units: u32,
) {
    reduce(seen, units);
    if UNIT_POS == 0u32 {
        if CUBE_POS as u32 == share.first {
            let head = share.place as usize * HEAD;
            partials[head] = rows + share.first * ROW as u32;
            partials[head + 1] = share.cubes;
        }
        let at = rows as usize + CUBE_POS * ROW;
        partials[at] = seen.before;
        partials[at + 1] = seen.after;
        partials[at + 2] = seen.zeros;
        partials[at + 3] = seen.max;
        partials[at + 4] = u32::reinterpret(seen.small);
        partials[at + 5] = u32::reinterpret(seen.medium);
        partials[at + 6] = u32::reinterpret(seen.big);
    }
}

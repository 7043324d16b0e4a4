//! Which tensor a cube works at.
//!
//! The tensors of a launch are cut into chunks of one size, which are numbered through. A cube takes every so-many-th.
//! Only what depends on the buffer, a load or a store, stands in the code once for each tensor, at the end of a binary
//! tree of branches: what is done with the values stands there once, so that a kernel over 28 tensors compiles about as
//! fast as one over a few.

use cubecl::prelude::*;

/// Words of a tensor's entry in the table of a launch: its first chunk, its vectors, its first row of partial results,
/// vectors from one padded row to the next, and values of a row.
/// Behind the last entry stand the bits of the edge from which values are counted.
pub const ENTRY: usize = 5;

/// What a cube works at.
#[derive(CubeType)]
pub struct Share {
    /// Which of the launch's tensors.
    pub tensor: u32,
    /// The first of its chunks.
    pub start: u32,
    /// Its vectors.
    pub length: u32,
    /// Its first row of partial results, or of what belongs to it.
    pub row: u32,
    /// Vectors from one padded row to the next.
    pub pitch: u32,
    /// Values of a row.
    pub columns: u32,
}

#[cube]
impl Share {
    /// By bisection of the table, which begins at word `from`. Of chunks behind the last, the last tensor with its length.
    pub fn find(table: &[u32], from: u32, chunk: u32, #[comptime] tensors: usize) -> Share {
        let mut low = 0u32;
        let mut high = comptime!(tensors as u32).runtime();
        while high - low > 1u32 {
            let middle = (low + high) / 2u32;
            if chunk < table[(from + middle * comptime!(ENTRY as u32)) as usize] {
                high = middle;
            } else {
                low = middle;
            }
        }
        let entry = (from + low * comptime!(ENTRY as u32)) as usize;
        Share {
            tensor: low,
            start: table[entry],
            length: table[entry + 1],
            row: table[entry + 2],
            pitch: table[entry + 3],
            columns: table[entry + 4],
        }
    }
}

/// Loads vectors from these places of one of the tensors, and holds them as `H`, of the same size.
#[cube]
pub fn load<T: CubePrimitive, H: CubePrimitive>(
    tensors: &Sequence<Box<[T]>>,
    tensor: u32,
    places: &Array<u32>,
    values: &mut Array<H>,
    #[comptime] loads: u32,
    #[comptime] low: usize,
    #[comptime] high: usize,
) {
    if comptime!(high - low == 1) {
        #[unroll]
        for load in 0..loads {
            values[load as usize] = H::reinterpret(tensors[low][places[load as usize] as usize]);
        }
    } else {
        let middle = comptime!((low + high) / 2);
        if tensor < comptime!(middle as u32) {
            load::<T, H>(tensors, tensor, places, values, loads, low, middle);
        } else {
            load::<T, H>(tensors, tensor, places, values, loads, middle, high);
        }
    }
}

/// Stores vectors at `position` and every `step` vectors from there, as long as that is before `end`.
#[cube]
pub fn store<T: CubePrimitive>(
    tensors: &mut Sequence<Box<[T]>>,
    tensor: u32,
    position: u32,
    end: u32,
    values: &Array<T>,
    #[comptime] step: u32,
    #[comptime] loads: u32,
    #[comptime] low: usize,
    #[comptime] high: usize,
) {
    if comptime!(high - low == 1) {
        let buffer = &mut tensors[low];
        #[unroll]
        for load in 0..loads {
            let at = position + load * step;
            if at < end {
                buffer[at as usize] = values[load as usize];
            }
        }
    } else {
        let middle = comptime!((low + high) / 2);
        if tensor < comptime!(middle as u32) {
            store::<T>(
                tensors, tensor, position, end, values, step, loads, low, middle,
            );
        } else {
            store::<T>(
                tensors, tensor, position, end, values, step, loads, middle, high,
            );
        }
    }
}

/// One vector of one of the tensors.
#[cube]
pub fn get<T: CubePrimitive>(
    tensors: &Sequence<Box<[T]>>,
    tensor: u32,
    position: u32,
    #[comptime] low: usize,
    #[comptime] high: usize,
) -> T {
    let mut places = Array::<u32>::new(1usize);
    let mut values = Array::<T>::new(1usize);
    places[0] = position;
    load(tensors, tensor, &places, &mut values, 1u32, low, high);
    values[0]
}

/// Stores one.
#[cube]
pub fn put<T: CubePrimitive>(
    tensors: &mut Sequence<Box<[T]>>,
    tensor: u32,
    position: u32,
    value: T,
    #[comptime] low: usize,
    #[comptime] high: usize,
) {
    let mut values = Array::<T>::new(1usize);
    values[0] = value;
    let end = position + 1u32;
    store(
        tensors, tensor, position, end, &values, 1u32, 1u32, low, high,
    );
}

//! One pass over a group of tensors of one dtype: it measures them, and may multiply them.
//!
//! A unit loads a few vectors, and takes their largest magnitude, their zeros and the sum of their squares. That is right
//! unless the largest magnitude is too far from 1: then it looks at the same values once more, one by one
//! (`observe`). Most gradients never need that.

use cubecl::{ir::ElemType, prelude::*};

use super::observe::{Measures, ROW, is_special, magnitude, observe, reduce};
use super::share::{ENTRY, Share, load, store};

/// What a pass does with the values, beside measuring them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    Inspect,
    /// Writes a product beside each tensor.
    Write,
    InPlace,
}

/// What is fixed when a pass is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    pub mode: Mode,
    /// Units of a cube, a power of two.
    pub units: u32,
    /// Units of a plane, or 1 where the device has none of one size.
    pub plane: u32,
    /// Whether rows of the tensors are padded.
    pub padded: bool,
}

/// What a loaded vector is held as, and how many of them it is: itself, or words of two halves. Where the ways from several tensors
/// meet, compilers move each of them on its own.
fn register(input: ElemType, vector: usize) -> (ElemType, usize) {
    match vector > 4 {
        // WGSL has no such conversion, and no such vectors.
        true => (u32::elem_type_native(), vector * input.size() / 4),
        false => (input, vector),
    }
}

/// Vectors that a unit loads before it looks at the first of them: as many as leave an NVIDIA multiprocessor the registers for half of its units.
pub fn loads(mode: Mode, padded: bool, vector: usize) -> u32 {
    match (mode, padded) {
        (Mode::Inspect, false) => 4,
        _ if vector > 4 => 2,
        (Mode::InPlace, false) => 4,
        // A product of each is held besides, or a column of padded rows.
        _ => 3,
    }
}

/// Reads `I`; products are `O`. A unit's chunk is `1 << shift` vectors of a tensor; which it is, `share.rs` says.
///
/// `factor` is what values are multiplied by, unless the mode is to inspect. Blocks with a value at `limit` or above, in
/// bits, are looked at twice.
///
/// Longer than others: what a unit holds from its loads to its stores is one state, and in functions of their own its parts would each take
/// all of it.
#[cube(launch_unchecked)]
pub fn measure<I: Float, O: Float, N: Size>(
    tensors: &mut Sequence<Box<[Vector<I, N>]>>,
    products: &mut Sequence<Box<[Vector<O, N>]>>,
    factor: &Sequence<Box<[f32]>>,
    partials: &mut [u32],
    table: &[u32],
    from: u32,
    shift: u32,
    limit: u32,
    #[comptime] form: Form,
    #[define(I, O)] dtypes: [ElemType; 2],
) {
    let width = N::value();
    let mode = comptime!(form.mode);
    let units = comptime!(form.units);
    let loads = comptime!(loads(mode, form.padded, width));
    let count = comptime!(tensors.len());
    let register = comptime!(register(dtypes[0], width));
    let define!(H) = comptime!(register.0);
    let size!(M) = comptime!(register.1);
    let edge = from as usize + comptime!(count * ENTRY);
    let mut multiplier = 1.0f32;
    if comptime!(mode != Mode::Inspect) {
        multiplier = factor[0][0];
    }
    let mut chunk = CUBE_POS as u32;
    loop {
        let share = Share::find(table, from, chunk, count);
        let tensor = share.tensor;
        let mut begin = (chunk - share.start) << shift;
        // Behind the last chunk, this is behind the end of the last tensor.
        if begin >= share.length {
            break;
        }
        let row = share.row + chunk - share.start;
        let mut measures = Measures::new();
        // All chunks of this tensor that are the cube's own.
        while begin < share.length {
            let end = min(begin + (1u32 << shift), share.length);
            let mut medium = 0.0f32;
            let mut position = begin + UNIT_POS;
            while position < end {
                let mut places = Array::<u32>::new(comptime!(loads as usize));
                #[unroll]
                for i in 0..loads {
                    places[i as usize] = min(position + i * units, end - 1u32);
                }
                let mut raw = Array::<Vector<H, M>>::new(comptime!(loads as usize));
                load(&*tensors, tensor, &places, &mut raw, loads, 0usize, count);
                let mut factors = Array::<f32>::new(comptime!(loads as usize));
                #[unroll]
                for i in 0..loads {
                    factors[i as usize] = multiplier;
                }
                // What is behind the end is zeros, whatever the factor is. Products that were zeroed in place of these would each need a register.
                if position + comptime!(units * (loads - 1)) >= end {
                    #[unroll]
                    for i in 0..loads {
                        if position + i * units >= end {
                            raw[i as usize] = Vector::new(H::from_int(0));
                            factors[i as usize] = 0.0f32;
                            measures.zeros -= comptime!(width as u32);
                        }
                    }
                }
                let mut out = Array::<Vector<O, N>>::new(comptime!(loads as usize));
                #[unroll]
                for i in 0..loads {
                    let before = Vector::<I, N>::reinterpret(raw[i as usize]);
                    out[i as usize] = product(before, factors[i as usize], mode);
                }
                // Products that are none are zeros, whatever the factor is, and taken back before they are counted.
                if comptime!(form.padded) {
                    #[unroll]
                    for i in 0..loads {
                        let column = (places[i as usize] % share.pitch) * comptime!(width as u32);
                        if column + comptime!(width as u32) > share.columns
                            && position + i * units < end
                        {
                            let mut vector = out[i as usize];
                            blank(&mut vector, column, share.columns, &mut measures);
                            out[i as usize] = vector;
                        }
                    }
                }
                let mut largest = 0u32;
                let mut squares = 0.0f32;
                #[unroll]
                for i in 0..loads {
                    let values = Vector::<f32, N>::cast_from(out[i as usize]);
                    #[unroll]
                    for lane in 0..N::value() {
                        let value = values.extract(lane);
                        let bits = magnitude(value);
                        largest = max(largest, bits);
                        measures.zeros += select(bits == 0u32, 1u32, 0u32);
                        squares += value * value;
                    }
                }
                if comptime!(mode == Mode::InPlace) {
                    let mut same = Array::<Vector<I, N>>::new(comptime!(loads as usize));
                    #[unroll]
                    for i in 0..loads {
                        same[i as usize] = Vector::cast_from(out[i as usize]);
                    }
                    store(
                        tensors, tensor, position, end, &same, units, loads, 0usize, count,
                    );
                }
                if is_special(largest, limit) {
                    let bits = table[edge];
                    let mut again = 1.0f32;
                    if comptime!(mode != Mode::Inspect) {
                        // The same one, which compilers cannot know: they make the products anew here and need no
                        // registers to hold them.
                        again = factor[0][(limit >> 31u32) as usize];
                    }
                    #[unroll]
                    for i in 0..loads {
                        if position + i * units < end {
                            let before = Vector::<I, N>::reinterpret(raw[i as usize]);
                            let column =
                                (places[i as usize] % share.pitch) * comptime!(width as u32);
                            let left = share.columns - min(column, share.columns);
                            look_again::<I, O, N>(&mut measures, before, again, bits, left, form);
                        }
                    }
                } else {
                    measures.max = max(measures.max, largest);
                    medium += squares;
                }
                if comptime!(mode == Mode::Write) {
                    store(
                        products, tensor, position, end, &out, units, loads, 0usize, count,
                    );
                }
                position += comptime!(units * loads);
            }
            // Sums of sums: long ones stay accurate.
            measures.medium += medium;
            begin += (CUBE_COUNT as u32) << shift;
        }
        chunk = share.start + (begin >> shift);
        reduce(&mut measures, units, comptime!(form.plane));
        if UNIT_POS == 0u32 {
            measures.write(partials, row as usize * ROW);
        }
    }
}

/// Of a vector that begins at `column`, makes zeros that are not counted of what is behind the row's end.
#[cube]
fn blank<O: Float, N: Size>(
    vector: &mut Vector<O, N>,
    column: u32,
    columns: u32,
    measures: &mut Measures,
) {
    #[unroll]
    for lane in 0..N::value() {
        if column + comptime!(lane as u32) >= columns {
            vector.insert(lane, O::from_int(0));
            measures.zeros -= 1u32;
        }
    }
}

/// Looks at the values of a vector one by one: at the first `left` where rows are padded, or at all.
#[cube]
fn look_again<I: Float, O: Float, N: Size>(
    measures: &mut Measures,
    before: Vector<I, N>,
    multiplier: f32,
    edge: u32,
    left: u32,
    #[comptime] form: Form,
) {
    let after = product::<I, O, N>(before, multiplier, comptime!(form.mode));
    let before = Vector::<f32, N>::cast_from(before);
    let after = Vector::<f32, N>::cast_from(after);
    #[unroll]
    for lane in 0..N::value() {
        if comptime!(form.padded) {
            if comptime!(lane as u32) < left {
                observe(measures, before.extract(lane), after.extract(lane), edge);
            }
        } else {
            observe(measures, before.extract(lane), after.extract(lane), edge);
        }
    }
}

#[cube]
fn product<I: Float, O: Float, N: Size>(
    raw: Vector<I, N>,
    multiplier: f32,
    #[comptime] mode: Mode,
) -> Vector<O, N> {
    let wide = Vector::<f32, N>::cast_from(raw);
    if comptime!(mode == Mode::Inspect) {
        Vector::cast_from(wide)
    } else {
        Vector::cast_from(wide * Vector::new(multiplier))
    }
}

//! The step of an optimizer, over many parameters of one dtype and all that belongs to them.

use cubecl::{ir::ElemType, prelude::*};

use super::share::{Share, get, put};
use crate::UpdateRule;
use crate::step::{ROW, column, step};

/// Units of a cube at most: with fewer, NVRTC keeps more addresses in registers than it needs to, and fewer warps are resident.
pub const UNITS: u32 = 512;
/// Registers that a cube's units share on NVIDIA's multiprocessors, and those of a unit that hold no address.
const REGISTERS: u32 = 1 << 16;
const OTHERS: u32 = 8;

/// Units of a cube over so many buffers: each has a register for the address of every buffer, where LLVM keeps them all.
pub fn units(buffers: usize) -> u32 {
    let fit = REGISTERS / (buffers as u32 + OTHERS);
    1 << UNITS.min(fit).ilog2()
}

/// Overwrites parameters and states. Which parameters and chunks are a cube's own, `share.rs` says; the row of an entry is the
/// parameter's among `rows`, which are `pitch` floats apart.
///
/// `wide` has the parameters in f32, or their masters, and behind them all first states, all second ones, and so on.
/// `images` has the parameters in half precision, and none in f32. Of a row that is not taken, nothing is read nor written.
///
/// Longer than others: a vector of each list is read, stepped and written back, and another function would take all of the lists.
#[cube(launch_unchecked)]
#[allow(clippy::len_zero)]
pub fn update_many<G: Float, P: Float, N: Size>(
    gradients: &Sequence<Box<[Vector<G, N>]>>,
    images: &mut Sequence<Box<[Vector<P, N>]>>,
    wide: &mut Sequence<Box<[Vector<f32, N>]>>,
    rows: &[f32],
    pitch: u32,
    table: &[u32],
    from: u32,
    shift: u32,
    #[comptime] rule: UpdateRule,
    #[comptime] units: u32,
    #[define(G, P)] _dtypes: [ElemType; 2],
) {
    let count = comptime!(gradients.len());
    let kept = comptime!(1 + rule.states());
    let mut chunk = CUBE_POS as u32;
    loop {
        let share = Share::find(table, from, chunk, count);
        let tensor = share.tensor;
        let begin = (chunk - share.start) << shift;
        if begin >= share.length {
            break;
        }
        let at = (share.row * pitch) as usize;
        if rows[at + column::TAKEN] != 0.0f32 {
            let mut row = Array::<f32>::new(ROW);
            #[unroll]
            for k in 1..ROW {
                row[k] = rows[at + k];
            }
            let end = min(begin + (1u32 << shift), share.length);
            let mut position = begin + UNIT_POS;
            while position < end {
                let gradient = get(gradients, tensor, position, 0usize, count);
                let mut values = Array::<Vector<f32, N>>::new(kept);
                #[unroll]
                for k in 0..kept {
                    let low = comptime!(k * count);
                    let tensor = tensor + comptime!(low as u32);
                    values[k] = get(&*wide, tensor, position, low, comptime!(low + count));
                }
                if comptime!(images.len() > 0) {
                    let image = get(&*images, tensor, position, 0usize, count);
                    let image = Vector::<f32, N>::cast_from(image);
                    let rounded = Vector::<f32, N>::cast_from(Vector::<P, N>::cast_from(values[0]));
                    values[0] = select_many(rounded.not_equal(&image), image, values[0]);
                }
                step_lanes::<G, N>(rule, &row, gradient, &mut values);
                #[unroll]
                for k in 0..kept {
                    let (low, high) = comptime!((k * count, (k + 1) * count));
                    let tensor = tensor + comptime!(low as u32);
                    put(wide, tensor, position, values[k], low, high);
                }
                if comptime!(images.len() > 0) {
                    let image = Vector::<P, N>::cast_from(values[0]);
                    put(images, tensor, position, image, 0usize, count);
                }
                position += units;
            }
        }
        chunk += CUBE_COUNT as u32;
    }
}

/// Steps a vector of each that is kept, lane by lane.
#[cube]
fn step_lanes<G: Float, N: Size>(
    #[comptime] rule: UpdateRule,
    row: &Array<f32>,
    gradient: Vector<G, N>,
    values: &mut Array<Vector<f32, N>>,
) {
    let kept = comptime!(1 + rule.states());
    let gradient = Vector::<f32, N>::cast_from(gradient);
    #[unroll]
    for lane in 0..N::value() {
        let mut value = Array::<f32>::new(kept);
        #[unroll]
        for k in 0..kept {
            value[k] = values[k].extract(lane);
        }
        let gradient = gradient.extract(lane);
        step(
            rule.runtime(),
            row.as_slice(),
            gradient,
            value.as_mut_slice(),
        );
        #[unroll]
        for k in 0..kept {
            let mut stepped = values[k];
            stepped.insert(lane, value[k]);
            values[k] = stepped;
        }
    }
}

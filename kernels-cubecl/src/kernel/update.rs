//! The step of an optimizer, over many parameters of one dtype and all that belongs to them.
//!
//! Each operation is Burn's own, in f32. Compilers may contract a product and a sum into one operation (CUDA's do), and WGSL
//! and SPIR-V allow division and square root some ulps: the last bits may differ from those that Burn's kernels give.

use cubecl::prelude::*;

use super::share::{Share, get, put};
use crate::update::UpdateRule;

/// Units of a cube: so many that compilers have no registers to keep the addresses of all tensors in, and half of the warps are resident.
pub const UNITS: u32 = 1024;

/// What a parameter's step reads beside its tensors, as [`UpdateRow`](crate::UpdateRow) has it behind `taken`.
#[derive(CubeType)]
struct Row {
    scale: f32,
    lr: f32,
    fresh: bool,
    decay: f32,
    beta_1: f32,
    factor_1: f32,
    beta_2: f32,
    factor_2: f32,
    correction_1: f32,
    correction_2: f32,
    epsilon: f32,
}

#[cube]
impl Row {
    fn read(rows: &[f32], at: usize) -> Row {
        Row {
            scale: rows[at + 1],
            lr: rows[at + 2],
            fresh: rows[at + 3] != 0.0f32,
            decay: rows[at + 4],
            beta_1: rows[at + 5],
            factor_1: rows[at + 6],
            beta_2: rows[at + 7],
            factor_2: rows[at + 8],
            correction_1: rows[at + 9],
            correction_2: rows[at + 10],
            epsilon: rows[at + 11],
        }
    }
}

/// Overwrites parameters and states. Which parameters and chunks are a cube's own, `share.rs` says; the row of an entry is the
/// parameter's among `rows`, which are `pitch` floats apart.
///
/// `wide` has the parameters in f32, or their masters, and behind them all first states, all second ones, and so on.
/// `images` has the parameters in half precision, and none in f32. Of a row that is not taken, nothing is read nor written.
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
) {
    let count = comptime!(gradients.len());
    let kept = comptime!(1 + rule.states());
    let mut chunk = CUBE_POS as u32;
    loop {
        let share = Share::find(table, from, chunk, count);
        let begin = (chunk - share.start) << shift;
        if begin >= share.length {
            break;
        }
        let at = (share.row(table) * pitch) as usize;
        if rows[at] != 0.0f32 {
            let row = Row::read(rows, at);
            let end = min(begin + (1u32 << shift), share.length);
            let mut position = begin + UNIT_POS;
            while position < end {
                let gradient = get(gradients, share.tensor, position, 0usize, count);
                let mut values = Array::<Vector<f32, N>>::new(kept);
                #[unroll]
                for k in 0..kept {
                    let low = comptime!(k * count);
                    let tensor = share.tensor + comptime!(low as u32);
                    values[k] = get(&*wide, tensor, position, low, comptime!(low + count));
                }
                if comptime!(images.len() > 0) {
                    let image = get(&*images, share.tensor, position, 0usize, count);
                    let image = Vector::<f32, N>::cast_from(image);
                    let rounded = Vector::<f32, N>::cast_from(Vector::<P, N>::cast_from(values[0]));
                    values[0] = select_many(rounded.not_equal(&image), image, values[0]);
                }
                let gradient = Vector::<f32, N>::cast_from(gradient) * Vector::new(row.scale);
                step::<N>(&row, gradient, &mut values, rule);
                #[unroll]
                for k in 0..kept {
                    let low = comptime!(k * count);
                    let tensor = share.tensor + comptime!(low as u32);
                    put(
                        wide,
                        tensor,
                        position,
                        values[k],
                        low,
                        comptime!(low + count),
                    );
                }
                if comptime!(images.len() > 0) {
                    let image = Vector::<P, N>::cast_from(values[0]);
                    put(images, share.tensor, position, image, 0usize, count);
                }
                position += units;
            }
        }
        chunk += CUBE_COUNT as u32;
    }
}

/// Of `values`, the first is the parameter, and the others are its states.
#[cube]
fn step<N: Size>(
    row: &Row,
    gradient: Vector<f32, N>,
    values: &mut Array<Vector<f32, N>>,
    #[comptime] rule: UpdateRule,
) {
    let parameter = values[0];
    let mut gradient = gradient;
    if comptime!(!matches!(rule, UpdateRule::AdamW { .. })) && row.decay != 0.0f32 {
        gradient = parameter * Vector::new(row.decay) + gradient;
    }
    if comptime!(matches!(rule, UpdateRule::Sgd { .. })) {
        if comptime!(rule.states() > 0) {
            let added = gradient * Vector::new(row.factor_1);
            let velocity = added + values[1] * Vector::new(row.beta_1);
            let velocity = select(row.fresh, gradient, velocity);
            values[1] = velocity;
            if comptime!(matches!(rule, UpdateRule::Sgd { nesterov: true, .. })) {
                gradient = velocity * Vector::new(row.beta_1) + gradient;
            } else {
                gradient = velocity;
            }
        }
        values[0] = parameter - gradient * Vector::new(row.lr);
    } else {
        let added = gradient * Vector::new(row.factor_1);
        let first = values[1] * Vector::new(row.beta_1) + added;
        let first = select(row.fresh, added, first);
        let added = (gradient * gradient) * Vector::new(row.factor_2);
        let second = values[2] * Vector::new(row.beta_2) + added;
        let second = select(row.fresh, added, second);
        values[1] = first;
        values[2] = second;
        let mut largest = second;
        if comptime!(rule.states() > 2) {
            let kept = select(row.fresh, second, values[3]);
            largest = select_many(kept.less_than(&second), second, kept);
            values[3] = largest;
        }
        let epsilon = Vector::new(row.epsilon);
        let lr = Vector::new(row.lr);
        if comptime!(matches!(rule, UpdateRule::Adam { .. })) {
            let delta = first * Vector::new(row.correction_1) / (largest.sqrt() + epsilon);
            values[0] = parameter - delta * lr;
        } else {
            let root = (largest / Vector::new(row.correction_2)).sqrt();
            let delta = first / Vector::new(row.correction_1) / (root + epsilon);
            let mut decayed = parameter * Vector::new(row.decay);
            if comptime!(matches!(rule, UpdateRule::AdamW { cautious: true, .. })) {
                let zero = Vector::new(0.0f32);
                let rises = first.greater_equal(&zero);
                let above = select_many(rises, decayed, zero);
                let below = select_many(rises, zero, decayed);
                decayed = select_many(parameter.greater_equal(&zero), above, below);
                decayed = parameter - decayed;
            }
            values[0] = decayed - delta * lr;
        }
    }
}

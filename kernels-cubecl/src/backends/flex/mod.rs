//! Flex: one pass in SIMD, split over threads where a tensor is large enough to pay for it.

mod cpu;
mod histogram;
mod measure;
mod memory;
mod pass;
mod update;
mod value;

use burn::{
    backend::Flex,
    tensor::{Element, TensorData},
};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::{
    clip::factors,
    histogram::BINS,
    ops::{AmpOps, CastOps, Job, TensorVec, taken},
    rows::{FIELDS, TensorStatus, row_norm},
    rule::{self, is_bad},
    scale_state::WORDS,
    update_row::{ROW, UNDECIDED, UpdateRule, column},
    words::{data_of, words_of},
};
use measure::{count_fields, row};
pub use memory::release_memory;
use pass::{blend, inspect, product};
use value::Value;

/// Lists of fewer values are done before a second thread has woken up.
const PARALLEL: usize = 1 << 15;

impl CastOps for Flex {}

impl AmpOps for Flex {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        let tensors = tensors.0;
        TensorVec(match job {
            Job::Unscale { keep_dtype, edge } => unscale(tensors, keep_dtype, edge),
            Job::Inspect { edge } => vec![status(each(
                tensors,
                |tensor| by_dtype!(tensor.dtype(), T => inspect::<T>(tensor, edge)),
            ))],
            Job::Histogram => {
                let counts = each(
                    tensors,
                    |tensor| by_dtype!(tensor.dtype(), T => histogram::count::<T>(tensor)),
                );
                let total = counts.into_iter().fold([0; BINS], histogram::add);
                vec![floats(total.map(count_fields).into_iter().flatten())]
            }
            Job::Blend { keep, add } => {
                let ([target, source], found_inf) = taken(tensors);
                if found_inf.into_iter().map(value).any(|found| found > 0.0) {
                    return TensorVec(vec![target]);
                }
                vec![
                    by_dtype!(source.dtype(), S => by_dtype!(target.dtype(), T => {
                        blend::<S, T>(target, source, keep, add)
                    })),
                ]
            }
            Job::MulCast { dtype, factor } => {
                let ([tensor], mut scale) = taken(tensors);
                let factor = factor as f32 * scale.pop().map_or(1.0, value);
                vec![
                    by_dtype!(tensor.dtype(), S => by_dtype!(dtype.into(), T => {
                        product::<S, T, false>(tensor, factor, f32::INFINITY).0
                    })),
                ]
            }
            Job::Update { rule } => update::update(tensors, rule),
            Job::Advance => vec![advance(tensors)],
            Job::Decide { rule } => vec![decide(tensors, rule)],
        })
    }
}

/// Of a tensor of shape `[1]`.
fn value(tensor: FlexTensor) -> f32 {
    numbers(tensor).first().copied().unwrap_or(1.0)
}

fn numbers<N: Element>(tensor: FlexTensor) -> Vec<N> {
    tensor.into_data().iter().collect()
}

fn words(tensor: FlexTensor) -> Vec<u32> {
    words_of(&tensor.into_data())
}

fn unscale(mut tensors: Vec<FlexTensor>, keep_dtype: bool, edge: f32) -> Vec<FlexTensor> {
    let factor = tensors.pop().map_or(1.0, value);
    let unscaled = each(tensors, |tensor| {
        by_dtype!(tensor.dtype(), S => match keep_dtype {
            true => product::<S, S, true>(tensor, factor, edge),
            false => product::<S, <S as Value>::Real, true>(tensor, factor, edge),
        })
    });
    memory::end_list();
    let (mut products, found): (Vec<_>, _) = unscaled.into_iter().unzip();
    products.push(status(found));
    products
}

/// Works on each tensor of the list, and in the order of the list on the results.
fn each<R: Send>(tensors: Vec<FlexTensor>, work: impl Fn(FlexTensor) -> R + Send + Sync) -> Vec<R> {
    let elements = |tensor: &FlexTensor| tensor.layout().num_elements();
    if tensors.iter().map(elements).sum::<usize>() < PARALLEL {
        return tensors.into_iter().map(work).collect();
    }
    tensors.into_par_iter().map(work).collect()
}

/// The state of a loss scale after a step.
fn advance(tensors: Vec<FlexTensor>) -> FlexTensor {
    let ([state, rows], mut border) = taken(tensors);
    let (state, rows) = (words(state), numbers(rows));
    let skipped = (0..rows.len() / FIELDS).any(|row| is_bad(&rows, row));
    let at_border = border.pop().is_some_and(|rows| is_bad(&numbers(rows), 0));
    let mut moved = state.clone();
    rule::advance(&state, &mut moved, skipped, at_border);
    FlexTensor::from_data(data_of(moved, [WORDS]))
}

/// Rows of an update, decided by the state of a loss scale.
fn decide(tensors: Vec<FlexTensor>, rule: UpdateRule) -> FlexTensor {
    let ([undecided, state], clip) = taken(tensors);
    let (undecided, state) = (words(undecided), words(state));
    let clip: Option<[_; 2]> = clip.try_into().ok();
    let factors = clip.map(|[table, rows]| {
        let rows: Vec<f64> = numbers(rows);
        let norms: Vec<f64> = rows.chunks_exact(FIELDS).map(row_norm).collect();
        factors(&words(table), &norms)
    });
    let rows = undecided.chunks_exact(UNDECIDED).flat_map(|words| {
        let mut row: [f32; ROW] = std::array::from_fn(|i| f32::from_bits(words[i]));
        rule::decide(&mut row, 0, &state, words[ROW], rule);
        if let Some(factors) = &factors {
            row[column::SCALE] *= factors[words[ROW + 1] as usize];
        }
        row.map(f32::to_bits)
    });
    let rows: Vec<u32> = rows.collect();
    let parameters = rows.len() / ROW;
    FlexTensor::from_data(data_of(rows, [parameters, ROW]))
}

fn status(found: Vec<TensorStatus>) -> FlexTensor {
    floats(found.iter().flat_map(row))
}

fn floats(floats: impl Iterator<Item = f64>) -> FlexTensor {
    let floats: Vec<f64> = floats.collect();
    let length = floats.len();
    FlexTensor::from_data(TensorData::new(floats, [length]))
}

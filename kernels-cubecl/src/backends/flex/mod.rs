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
    tensor::{DType, ElementConversion, TensorData, bf16, f16},
};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::{
    clip::factors,
    histogram::BINS,
    ops::{AmpOps, CastOps, Job, TensorVec},
    rule::{self, is_bad},
    schedule::{WORDS, data_of, words_of},
    status::{FIELDS, norms},
    update::{ROW, UNDECIDED, UpdateRule, column},
};
use measure::{Row, count_fields};
pub use memory::release_memory;
use pass::{Blend, Scale, blend, look, product};
use value::Value;

/// Lists of fewer values are done before a second thread has woken up.
const PARALLEL: usize = 1 << 15;

macro_rules! by_dtype {
    ($dtype:expr, $T:ident: $($name:ident $type:ty),* => $body:expr) => {
        match $dtype {
            $(DType::$name => {
                type $T = $type;
                $body
            })*
            dtype => panic!("these are floats, not {dtype:?}"),
        }
    };
}

impl CastOps for Flex {}

impl AmpOps for Flex {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        let mut tensors = tensors.0;
        let mut last = || tensors.pop().expect("as many tensors as the job takes");
        TensorVec(match job {
            Job::Unscale { keep_dtype, edge } => {
                let inverse = value(last());
                unscale(tensors, inverse, keep_dtype, edge)
            }
            Job::Inspect { edge } => {
                let rows = each(
                    tensors,
                    |tensor| by_dtype!(tensor.dtype(), T: F16 f16, BF16 bf16, F32 f32, F64 f64 => look::<T>(&tensor, edge)),
                );
                vec![status(rows)]
            }
            Job::Histogram => {
                let counts = each(
                    tensors,
                    |tensor| by_dtype!(tensor.dtype(), T: F16 f16, BF16 bf16, F32 f32, F64 f64 => histogram::count::<T>(&tensor)),
                );
                let total = counts.into_iter().fold([0; BINS], histogram::add);
                vec![floats(total.into_iter().flat_map(count_fields).collect())]
            }
            Job::Blend { keep, add } => {
                let found_inf = tensors.split_off(2).pop();
                let [target, source] = two(tensors);
                if found_inf.is_some_and(|found_inf| value(found_inf) > 0.0) {
                    return TensorVec(vec![target]);
                }
                vec![
                    by_dtype!(source.dtype(), S: F16 f16, BF16 bf16, F32 f32, F64 f64 => {
                        by_dtype!(target.dtype(), T: F32 f32, F64 f64 => {
                            let (keep, add) = (keep.elem::<T>(), add.elem::<T>());
                            blend::<S, T>(target, &source, &Blend { keep, add })
                        })
                    }),
                ]
            }
            Job::MulCast { dtype, factor } => {
                let tensor = tensors.remove(0);
                let scale = tensors.pop().map_or(1.0, value);
                let job = Scale::<f32, false>(factor as f32 * scale);
                vec![
                    by_dtype!(tensor.dtype(), S: F16 f16, BF16 bf16, F32 f32 => {
                        by_dtype!(dtype.into(), T: F16 f16, BF16 bf16, F32 f32 => {
                            product::<S, T, _>(tensor, &job, f32::INFINITY).0
                        })
                    }),
                ]
            }
            Job::Update { rule } => update::update(tensors, rule),
            Job::Advance => {
                let mut tensors = tensors.into_iter();
                let state = words(tensors.next().expect("a state is first"));
                let mut rows = tensors.map(|rows| rows.into_data().iter().collect::<Vec<f32>>());
                let own = rows.next().expect("rows are next");
                let skipped = (0..own.len() / FIELDS).any(|row| is_bad(&own, row));
                let blameless = rows.next().is_some_and(|rows| is_bad(&rows, 0));
                let mut next = state.clone();
                rule::advance(&state, &mut next, skipped, blameless);
                vec![FlexTensor::from_data(data_of(next, [WORDS]))]
            }
            Job::Decide { rule } => {
                let clip = tensors.split_off(2);
                vec![decide(tensors, clip, rule)]
            }
        })
    }
}

fn two(tensors: Vec<FlexTensor>) -> [FlexTensor; 2] {
    (tensors.try_into()).unwrap_or_else(|_| panic!("as many tensors as the job takes"))
}

/// Of a tensor of shape `[1]`.
fn value(tensor: FlexTensor) -> f32 {
    tensor.into_data().iter().next().unwrap_or(1.0)
}

fn unscale(tensors: Vec<FlexTensor>, inverse: f32, keep_dtype: bool, edge: f32) -> Vec<FlexTensor> {
    let unscaled = each(tensors, |tensor| {
        by_dtype!(tensor.dtype(), S: F16 f16, BF16 bf16, F32 f32, F64 f64 => {
            type R = <S as Value>::Real;
            let job = Scale::<R, true>(inverse.elem());
            match keep_dtype {
                true => product::<S, S, _>(tensor, &job, edge),
                false => product::<S, R, _>(tensor, &job, edge),
            }
        })
    });
    memory::settle();
    let (mut products, rows): (Vec<_>, _) = unscaled.into_iter().unzip();
    products.push(status(rows));
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

fn words(tensor: FlexTensor) -> Vec<u32> {
    words_of(&tensor.into_data())
}

/// Of what is undecided and the state; `clip` has nothing, or a table and the rows of a status.
fn decide(tensors: Vec<FlexTensor>, clip: Vec<FlexTensor>, rule: UpdateRule) -> FlexTensor {
    let [undecided, state] = two(tensors).map(words);
    let mut clip = clip.into_iter();
    let factors = clip.next().zip(clip.next()).map(|(table, rows)| {
        let rows: Vec<f64> = rows.into_data().iter().collect();
        factors(&words(table), &norms(&rows))
    });
    let is_adam = matches!(rule, UpdateRule::Adam { .. });
    let is_adam_w = matches!(rule, UpdateRule::AdamW { .. });
    let rows = undecided.chunks_exact(UNDECIDED).flat_map(|words| {
        let mut row: Vec<f32> = words[..ROW]
            .iter()
            .map(|word| f32::from_bits(*word))
            .collect();
        rule::decide(&mut row, 0, &state, words[ROW], is_adam, is_adam_w);
        if let Some(factors) = &factors {
            row[column::SCALE] *= factors[words[ROW + 1] as usize];
        }
        row
    });
    let rows: Vec<f32> = rows.collect();
    let shape = [rows.len() / ROW, ROW];
    FlexTensor::from_data(TensorData::new(rows, shape))
}

fn status(rows: Vec<Row>) -> FlexTensor {
    floats(rows.iter().flat_map(Row::fields).collect())
}

fn floats(floats: Vec<f64>) -> FlexTensor {
    let length = floats.len();
    FlexTensor::from_data(TensorData::new(floats, [length]))
}

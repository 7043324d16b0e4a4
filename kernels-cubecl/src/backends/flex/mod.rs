//! Flex: one pass in SIMD, split over threads where a tensor is large enough to pay for it.

mod cpu;
mod measure;
mod pass;
mod update;

use burn::backend::Flex;
use burn::tensor::{Element, ElementConversion, FloatDType, TensorData};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::job::{Kernels, Scale, Scaling};
use crate::rule::{self, WORDS};
use crate::status::{FIELDS, encode, encode_count, row_norm};
use crate::step::{ROW, UNDECIDED};
use crate::words::data_of;
use crate::{
    AmpOps, CastOps, Job, TensorStatus, TensorVec, UpdateRule, clip::factors, memory::end_list,
};
use cpu::Value;
use pass::{blend, inspect, product};
use update::update;

/// Lists of fewer values are done before a second thread has woken up.
const PARALLEL: usize = 1 << 15;

const KERNELS: Kernels<FlexTensor> = Kernels {
    pass,
    histogram,
    blend,
    mul_cast,
    update,
    advance,
    clip,
    decide,
};

impl CastOps for Flex {}

impl AmpOps for Flex {
    fn amp_run(tensors: TensorVec<Self>, job: Job) -> TensorVec<Self> {
        TensorVec(KERNELS.run(tensors.0, job))
    }
}

/// Reads a tensor of shape `[1]`.
fn value(tensor: FlexTensor) -> f32 {
    numbers(tensor).first().copied().unwrap_or(1.0)
}

fn numbers<N: Element>(tensor: FlexTensor) -> Vec<N> {
    // Not `into_data`, which copies what somebody else holds, and gives values one by one.
    let whole = tensor.to_contiguous();
    by_dtype!(whole.dtype(), T => whole.storage::<T>().iter().map(|value| (*value).elem()).collect())
}

fn words(tensor: FlexTensor) -> Vec<u32> {
    numbers(tensor).into_iter().map(f32::to_bits).collect()
}

/// Works on each tensor of the list, and in the order of the list on the results. No share is boxed, as parts of tensors are: few kinds of work come here,
/// and a list may have thousands of small tensors.
fn each<R: Send>(tensors: Vec<FlexTensor>, work: impl Fn(FlexTensor) -> R + Sync) -> Vec<R> {
    let elements = tensors.iter().map(|tensor| tensor.layout().num_elements());
    match elements.sum::<usize>() < PARALLEL {
        true => tensors.into_iter().map(work).collect(),
        false => tensors.into_par_iter().map(&work).collect(),
    }
}

/// Works on parts that have so many values together, by several threads if that pays; the results are in their order. Each part is boxed, so that
/// Rayon is compiled once for each result and not for each dtype and formula, which was most of what this crate took to build.
fn shared<T: Send, R: Send>(
    parts: impl Iterator<Item = T>,
    values: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if values < PARALLEL {
        return parts.map(work).collect();
    }
    let work = &work;
    let share = |part| -> Box<dyn FnOnce() -> R + Send + '_> { Box::new(move || work(part)) };
    let shares: Vec<_> = parts.map(share).collect();
    shares.into_par_iter().map(|share| share()).collect()
}

fn pass(tensors: Vec<FlexTensor>, factor: Scaling<FlexTensor>, edge: f32) -> Vec<FlexTensor> {
    let factor = factor.map(|(factor, keep_dtype)| (value(factor), keep_dtype));
    let made = |(product, found)| (Some(product), found);
    let measured = each(tensors, |tensor| {
        by_dtype!(tensor.dtype(), T => match factor {
            None => (None, inspect::<T>(tensor, edge)),
            Some((factor, true)) => made(product::<T, T, true>(tensor, factor, edge)),
            Some((factor, false)) => {
                made(product::<T, <T as Value>::Real, true>(tensor, factor, edge))
            }
        })
    });
    end_list();
    let (products, found): (Vec<_>, Vec<TensorStatus>) = measured.into_iter().unzip();
    let rows: Vec<_> = found.iter().map(encode).collect();
    let status = FlexTensor::from_data(TensorData::from(rows.as_flattened()));
    products.into_iter().flatten().chain([status]).collect()
}

fn histogram(tensors: Vec<FlexTensor>) -> FlexTensor {
    let counts = |tensor: FlexTensor| by_dtype!(tensor.dtype(), T => pass::counts::<T>(tensor));
    let total = pass::total(each(tensors, counts)).bins.map(encode_count);
    FlexTensor::from_data(TensorData::from(total.as_flattened()))
}

fn mul_cast(tensor: FlexTensor, dtype: FloatDType, scale: Scale<FlexTensor>) -> FlexTensor {
    let factor = scale.0 as f32 * scale.1.map_or(1.0, value);
    by_dtype!(tensor.dtype(), S => by_dtype!(dtype.into(), T => {
        product::<S, T, false>(tensor, factor, f32::INFINITY).0
    }))
}

fn advance([state, rows]: [FlexTensor; 2], border: Vec<FlexTensor>, largest: f32) -> FlexTensor {
    let border: Vec<_> = border.into_iter().map(numbers).collect();
    let next = rule::advance_on_host(&words(state), &numbers(rows), &border, largest);
    FlexTensor::from_data(data_of(next, [WORDS]))
}

fn clip([table, rows]: [FlexTensor; 2]) -> FlexTensor {
    let rows: Vec<f64> = numbers(rows);
    let norms: Vec<f64> = rows.chunks_exact(FIELDS).map(row_norm).collect();
    let factors = factors(&words(table), &norms);
    FlexTensor::from_data(TensorData::new(factors, [norms.len()]))
}

fn decide(both: [FlexTensor; 2], factors: Option<FlexTensor>, rule: UpdateRule) -> FlexTensor {
    let [undecided, state] = both.map(words);
    let factors: Option<Vec<f32>> = factors.map(numbers);
    let rows = rule::decide_on_host(&undecided, &state, factors.as_deref(), rule);
    FlexTensor::from_data(TensorData::new(rows, [undecided.len() / UNDECIDED, ROW]))
}

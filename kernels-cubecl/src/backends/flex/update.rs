//! The step of an optimizer: one pass over a parameter and all that belongs to it.

use burn::tensor::{DType, bf16, f16};
use burn_flex::FlexTensor;
use bytemuck::Pod;
use macerator::{Simd, with_simd};

use super::cpu::{Group, LANES, Value};
use super::pass::{is_whole, padded};
use super::{numbers, shared};
use crate::UpdateRule;
use crate::step::{ROW, column, has_master, step};

/// Values that one thread takes at a time.
const CHUNK: usize = 1 << 15;
/// Values that are widened, stepped and rounded while they are in the first cache.
const BLOCK: usize = 32 * LANES;

/// A parameter in f32, or its master, and the states of the rule that has the most; others are empty.
type Wide<'a> = [&'a mut [f32]; 4];

/// Does [`Job::Update`](crate::Job::Update).
pub(super) fn update(
    mut parameters: Vec<Vec<FlexTensor>>,
    rows: FlexTensor,
    rule: UpdateRule,
) -> Vec<FlexTensor> {
    let rows = numbers(rows);
    let rows = rows.as_chunks::<ROW>().0.iter().zip(&mut parameters);
    let taken = rows.filter(|(row, _)| row[column::TAKEN] != 0.0);
    let chunks = taken.flat_map(|(row, own)| chunks(rule, row, own));
    let chunks: Vec<Chunk> = chunks.collect();
    let values = chunks.iter().map(|chunk| chunk.wide[0].len()).sum();
    shared(chunks.into_iter(), values, step_chunk);
    let written = |own: Vec<FlexTensor>| own.into_iter().skip(1);
    parameters.into_iter().flat_map(written).collect()
}

/// Cuts into chunks a parameter and all that belongs to it. Tensors that somebody else holds are copied first.
fn chunks<'a>(
    rule: UpdateRule,
    row: &'a [f32; ROW],
    own: &'a mut [FlexTensor],
) -> impl Iterator<Item = Chunk<'a>> {
    align(own);
    let (gradient, written) = own.split_first_mut().expect("a gradient is first");
    let (gradient, dtype) = (&*gradient, written[0].dtype());
    let (parameter, others) = written.split_at_mut(has_master(dtype).into());
    let mut half: &mut [u16] = match dtype {
        DType::F16 => bytemuck::cast_slice_mut(parameter[0].storage_mut::<f16>()),
        DType::BF16 => bytemuck::cast_slice_mut(parameter[0].storage_mut::<bf16>()),
        _ => &mut [],
    };
    let mut wide = Wide::default();
    for (values, tensor) in wide.iter_mut().zip(others) {
        *values = tensor.storage_mut();
    }
    let count = wide[0].len().div_ceil(CHUNK);
    (0..count).map(move |at| Chunk {
        rule,
        row,
        gradient,
        at: at * CHUNK,
        dtype,
        half: split(&mut half, CHUNK),
        wide: wide.each_mut().map(|values| split(values, CHUNK)),
    })
}

/// Has the values of all tensors lie in one order, and nothing between them.
fn align(tensors: &mut [FlexTensor]) {
    let strides = tensors[0].layout().strides();
    if !(tensors.iter()).all(|tensor| tensor.layout().strides() == strides && is_whole(tensor)) {
        for tensor in tensors {
            *tensor = tensor.to_contiguous();
        }
    }
}

/// The first values of a slice, which keeps the others; nothing of one that is empty.
fn split<'a, T>(slice: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    let length = length.min(slice.len());
    slice.split_off_mut(..length).unwrap_or_default()
}

/// Looks at the values of a parameter in half precision; at nothing, of one that is its own master.
fn halves<T: Pod>(half: &mut [u16]) -> &mut [T] {
    bytemuck::try_cast_slice_mut(half).unwrap_or_default()
}

/// Values of one parameter that one thread steps.
struct Chunk<'a> {
    rule: UpdateRule,
    row: &'a [f32; ROW],
    /// The parameter's whole gradient.
    gradient: &'a FlexTensor,
    /// The place of the gradient's first value here.
    at: usize,
    /// The parameter's dtype.
    dtype: DType,
    /// The parameter, if it is in half precision.
    half: &'a mut [u16],
    wide: Wide<'a>,
}

#[with_simd]
fn step_chunk<'a, S: Simd>(chunk: Chunk<'a>) {
    let mut chunk = chunk;
    let mut widened = [0.0; BLOCK];
    while !chunk.wide[0].is_empty() {
        let half = split(&mut chunk.half, BLOCK);
        let mut wide = chunk.wide.each_mut().map(|values| split(values, BLOCK));
        let place = chunk.at..chunk.at + wide[0].len();
        chunk.at = place.end;
        let widened = &mut widened[..place.len()];
        let gradient = match chunk.gradient.dtype() {
            DType::F32 => &chunk.gradient.storage()[place],
            DType::F16 => widen::<S, f16>(&chunk.gradient.storage()[place], widened),
            _ => widen::<S, bf16>(&chunk.gradient.storage()[place], widened),
        };
        by_dtype!(narrow chunk.dtype, T => follow::<S, T>(halves(half), wide[0]));
        step_by_rule(chunk.rule, *chunk.row, gradient, &mut wide);
        by_dtype!(narrow chunk.dtype, T => {
            by_group(wide[0], halves(half), |wide, half| *half = T::narrow::<S>(*wide))
        });
    }
}

#[inline(always)]
fn widen<'a, S: Simd, T: Value<Real = f32>>(values: &[T], wide: &'a mut [f32]) -> &'a [f32] {
    by_group(values, wide, |values, wide| *wide = T::widen::<S>(values));
    wide
}

/// Gives masters the values of parameters that are no longer their rounded images.
#[inline(always)]
fn follow<S: Simd, T: Value<Real = f32>>(parameters: &[T], masters: &mut [f32]) {
    by_group(parameters, masters, |parameters, masters| {
        let image = T::widen::<S>(&T::narrow::<S>(*masters));
        let held = T::widen::<S>(parameters);
        // Without a branch: each is written.
        for (i, master) in masters.iter_mut().enumerate() {
            *master = if image[i] == held[i] {
                *master
            } else {
                held[i]
            };
        }
    });
}

#[inline(always)]
fn by_group<S: Value, T: Value>(
    source: &[S],
    target: &mut [T],
    work: impl Fn(&Group<S>, &mut Group<T>),
) {
    let (sources, source) = source.as_chunks();
    let (targets, target) = target.as_chunks_mut();
    for (source, target) in sources.iter().zip(targets) {
        work(source, target);
    }
    if !source.is_empty() && !target.is_empty() {
        let mut group = padded(target);
        work(&padded(source), &mut group);
        target.copy_from_slice(&group[..target.len()]);
    }
}

/// Steps values in f32, by code that is compiled for each rule: what it does not do is not in its loop.
#[inline(always)]
fn step_by_rule(rule: UpdateRule, row: [f32; ROW], gradient: &[f32], wide: &mut Wide) {
    macro_rules! by_number {
        ($($number:literal)*) => {
            match rule.number() {
                $($number => step_all(UpdateRule::of_number($number), row, gradient, wide),)*
                number => unreachable!("no rule has the number {number}"),
            }
        };
    }
    by_number!(0 1 2 3 4 6 8 9 10 11)
}

#[inline(always)]
fn step_all(rule: UpdateRule, row: [f32; ROW], gradient: &[f32], wide: &mut Wide) {
    let stepped = match rule.states() {
        // The compiler unrolls the loop over a shorter group, and then finds less SIMD in it.
        1 => step_groups::<{ 2 * LANES }>(rule, row, gradient, wide, 0),
        _ => step_groups::<LANES>(rule, row, gradient, wide, 0),
    };
    step_groups::<1>(rule, row, gradient, wide, stepped);
}

/// Steps whole groups from there on, and says where they end.
#[inline(always)]
fn step_groups<const L: usize>(
    rule: UpdateRule,
    row: [f32; ROW],
    gradient: &[f32],
    wide: &mut Wide,
    from: usize,
) -> usize {
    let gradients = gradient[from..].as_chunks::<L>().0;
    let rest = wide.each_mut().map(|values| values.get_mut(from..));
    let mut groups = rest.map(|values| values.unwrap_or_default().as_chunks_mut().0);
    let (kept, none) = (1 + rule.states(), [0.0; L]);
    for (at, gradient) in gradients.iter().enumerate() {
        // Each by its name: in an array of arrays they would stay in memory.
        let held = |k: usize| if k < kept { groups[k][at] } else { none };
        let (mut p, mut first, mut second, mut third) = (held(0), held(1), held(2), held(3));
        for i in 0..L {
            let mut values = [p[i], first[i], second[i], third[i]];
            step(rule, &row, gradient[i], &mut values);
            [p[i], first[i], second[i], third[i]] = values;
        }
        let stepped = [p, first, second, third].into_iter().take(kept);
        for (group, stepped) in groups.iter_mut().zip(stepped) {
            group[at] = stepped;
        }
    }
    from + gradients.len() * L
}

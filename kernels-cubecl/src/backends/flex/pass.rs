//! One loop for all that is made of tensors and found in them: group by group, block by block, in chunks that threads share.

use burn::tensor::ElementConversion;
use burn_flex::FlexTensor;
use burn_std::Bytes;
use macerator::{Simd, with_simd};
use std::ops::Add;

use super::cpu::{Group, LANES, Real, Value, streamed, write};
use super::measure::{Found, Pair, Sums, join, pairs};
use super::{shared, value};
use crate::{ExponentHistogram, TensorStatus, histogram::BINS, job::Weights, memory};

/// Values that one thread takes at a time: enough to be worth the hand-over, few enough to share evenly.
const CHUNK: usize = 1 << 16;
/// Bytes of a product from which on it goes past the caches, which it would fill.
const STREAMED: usize = 1 << 22;
/// Values of a pair of groups.
const PAIR: usize = 2 * LANES;
/// Values that are judged together: each lane sums 32 squares, and their errors do not add up over blocks.
const BLOCK: usize = 32 * PAIR;

/// `factor` times the source, and `keep` times what the target holds if it is kept; rounded to the target's dtype.
#[derive(Clone, Copy)]
struct Formula<T: Value, const MEASURED: bool, const BLENDED: bool> {
    factor: T::Real,
    keep: T::Real,
    /// The least magnitude that counts as large.
    edge: f32,
    streams: bool,
}

impl<T: Value, const MEASURED: bool, const BLENDED: bool> Formula<T, MEASURED, BLENDED> {
    #[inline(always)]
    fn make<S: Simd, V: Value>(self, source: &Group<V>, target: &Group<T>) -> Group<T> {
        let (read, held) = (V::widen::<S>(source), T::widen::<S>(target));
        let mut made = read.map(|value| value.elem());
        T::Real::multiply::<S>(&mut made, self.factor);
        if BLENDED {
            for (made, held) in made.iter_mut().zip(held) {
                *made = self.keep * held + *made;
            }
        }
        T::narrow::<S>(made)
    }

    /// Makes all, with several threads if there is enough to do.
    fn run<V: Value>(self, source: Option<&[V]>, target: &mut [T]) -> TensorStatus {
        let values = target.len();
        let chunks = target.chunks_mut(CHUNK).enumerate();
        joined(shared(chunks, values, |(at, target)| {
            make_chunk(source.map(|all| &all[at * CHUNK..]), target, self)
        }))
    }

    /// Makes a pair and measures it.
    #[inline(always)]
    fn pair<S: Simd, V: Value, const STREAM: bool>(
        self,
        [a, b]: &Pair<V>,
        [to_a, to_b]: &mut Pair<T>,
        sums: &mut Sums<T>,
    ) {
        let made = [self.make::<S, V>(a, to_a), self.make::<S, V>(b, to_b)];
        if MEASURED {
            sums.add::<S>(&made);
        }
        let [a, b] = made;
        write::<T, STREAM>(to_a, a);
        write::<T, STREAM>(to_b, b);
    }

    /// Makes a block, of the source or of what is there already.
    #[inline(always)]
    fn block<S: Simd, V: Value>(
        self,
        source: Option<&[V]>,
        target: &mut [T],
        found: &mut Found<T>,
    ) {
        let mut sums = Sums::default();
        let whole = target.len() / PAIR * PAIR;
        let (targets, rest) = target.split_at_mut(whole);
        let (targets, _) = targets.as_chunks_mut().0.as_chunks_mut();
        match source.map(pairs) {
            Some(sources) if self.streams => {
                for (source, target) in sources.iter().zip(&mut *targets) {
                    self.pair::<S, V, true>(source, target, &mut sums);
                }
            }
            Some(sources) => {
                for (source, target) in sources.iter().zip(&mut *targets) {
                    self.pair::<S, V, false>(source, target, &mut sums);
                }
            }
            None => {
                for target in &mut *targets {
                    self.pair::<S, V, false>(&bytemuck::cast(*target), target, &mut sums);
                }
            }
        }
        if MEASURED {
            found.add(targets, &sums);
        }
        // Less than a pair.
        for (at, rest) in rest.chunks_mut(LANES).enumerate() {
            let source = source.map(|all| padded(&all[whole + at * LANES..][..rest.len()]));
            let source = source.unwrap_or_else(|| bytemuck::cast(padded(rest)));
            let made = self.make::<S, V>(&source, &padded(rest));
            rest.copy_from_slice(&made[..rest.len()]);
            if MEASURED {
                found.add_each(rest);
            }
        }
    }
}

/// Finds what one thread measures at a time.
#[with_simd]
fn inspect_chunk<S: Simd, T: Value>(values: &[T], edge: f32) -> TensorStatus {
    let mut found = Found::new(edge);
    let whole = pairs(values);
    for block in whole.chunks(BLOCK / PAIR) {
        let mut sums = Sums::default();
        for pair in block {
            sums.add::<S>(pair);
        }
        found.add(block, &sums);
    }
    found.add_each(&values[whole.len() * PAIR..]);
    found.status()
}

/// Makes what one thread does at a time: of the source, or of what is there already. `V` and `T` are the same then.
#[with_simd]
fn make_chunk<'a, S: Simd, V: Value, T: Value, const M: bool, const B: bool>(
    source: Option<&'a [V]>,
    target: &'a mut [T],
    formula: Formula<T, M, B>,
) -> TensorStatus {
    let factor: f64 = formula.factor.into();
    // What is finite may become infinite.
    let overflows = M && (factor.is_nan() || factor.abs() > 1.0);
    let mut found = Found::new(formula.edge);
    let mut before = 0;
    for (at, target) in target.chunks_mut(BLOCK).enumerate() {
        let source = source.map(|all| &all[at * BLOCK..][..target.len()]);
        if overflows {
            let block = source.unwrap_or_else(|| bytemuck::cast_slice(target));
            before += block
                .iter()
                .filter(|value| value.magnitude() >= V::INFINITY)
                .count() as u64;
        }
        formula.block::<S, V>(source, target, &mut found);
    }
    if formula.streams {
        streamed();
    }
    let mut found = found.status();
    if overflows {
        found.non_finite_before = before;
    }
    found
}

/// Copies values into a group that is zero where they end.
pub(super) fn padded<T: Value>(values: &[T]) -> Group<T> {
    let mut group = [T::zeroed(); LANES];
    group[..values.len()].copy_from_slice(values);
    group
}

/// Looks at each chunk of a tensor, by several threads if there is enough to do.
fn by_chunk<T: Value, R: Send>(mut tensor: FlexTensor, work: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    make_whole(&mut tensor);
    let values: &[T] = tensor.storage();
    shared(values.chunks(CHUNK), values.len(), work)
}

/// Joins findings in the order of the chunks: the same sum on every run, whichever thread was first.
fn joined(found: Vec<TensorStatus>) -> TensorStatus {
    found.into_iter().fold(TensorStatus::default(), join)
}

/// Measures a tensor.
pub(super) fn inspect<T: Value>(tensor: FlexTensor, edge: f32) -> TensorStatus {
    joined(by_chunk(tensor, |values: &[T]| inspect_chunk(values, edge)))
}

/// The product with a factor: in place where the dtype stays and nobody else holds the buffer, and else in new memory, in
/// which values lie in the order in which the tensor's do.
pub(super) fn product<S: Value, T: Value, const MEASURED: bool>(
    mut tensor: FlexTensor,
    factor: f32,
    edge: f32,
) -> (FlexTensor, TensorStatus) {
    let size = tensor.layout().num_elements() * size_of::<T>();
    let formula = Formula::<T, MEASURED, false> {
        factor: factor.elem(),
        keep: T::Real::default(),
        edge,
        streams: MEASURED && size >= STREAMED,
    };
    make_whole(&mut tensor);
    if S::dtype() == T::dtype()
        && let Some(target) = tensor.try_storage_mut::<T>()
    {
        let found = formula.run(None::<&[S]>, target);
        return (tensor, found);
    }
    let source: &[S] = tensor.storage();
    let mut bytes = match MEASURED && size >= memory::SMALLEST {
        true => memory::take(size),
        false => Bytes::from_elems(bytemuck::zeroed_vec::<T>(source.len())),
    };
    let target: &mut [T] = bytemuck::cast_slice_mut(&mut bytes);
    let found = formula.run(Some(source), target);
    let product = FlexTensor::new(bytes, tensor.layout().clone(), T::dtype());
    (product, found)
}

/// The weighted sum, over the target's values if nobody else holds them, and else over a copy; or the target, if `found_inf` says so.
pub(super) fn blend(both: [FlexTensor; 2], weights: Weights<FlexTensor>) -> FlexTensor {
    let ([keep, add], found_inf) = weights;
    if found_inf.is_some_and(|found| value(found) > 0.0) {
        let [target, _] = both;
        return target;
    }
    let [mut target, source] = both.map(|tensor| tensor.to_contiguous());
    by_dtype!(source.dtype(), S => by_dtype!(target.dtype(), T => {
        let (factor, keep, edge, streams) = (add.elem(), keep.elem(), f32::INFINITY, false);
        let formula = Formula::<T, false, true> { factor, keep, edge, streams };
        formula.run(Some(source.storage::<S>()), target.storage_mut::<T>());
    }));
    target
}

/// Has a tensor be all of its buffer, by a copy where it is not.
fn make_whole(tensor: &mut FlexTensor) {
    if !is_whole(tensor) {
        *tensor = tensor.to_contiguous();
    }
}

/// Returns true if the tensor is all of its buffer, in whatever order its dimensions are.
pub(super) fn is_whole(tensor: &FlexTensor) -> bool {
    let layout = tensor.layout();
    let is_dense = || {
        let strides = layout.strides().iter().map(|stride| (*stride).try_into());
        let strides: Result<Vec<usize>, _> = strides.collect();
        strides.is_ok_and(|strides| burn_std::is_dense(layout.shape(), &strides))
    };
    tensor.bytes().len() == layout.num_elements() * tensor.dtype().size()
        && layout.start_offset() == 0
        && (layout.is_contiguous() || is_dense())
}

/// Counts a tensor's values by exponent.
pub(super) fn counts<T: Value>(tensor: FlexTensor) -> ExponentHistogram {
    total(by_chunk(tensor, |values: &[T]| count_chunk(values)))
}

pub(super) fn total(all: impl IntoIterator<Item = ExponentHistogram>) -> ExponentHistogram {
    all.into_iter().fold(ExponentHistogram::default(), Add::add)
}

/// Tables of counts take turns, so that a value does not wait for the count of the one before it.
type Tables = [[u32; BINS]; 4];

#[with_simd]
fn count_chunk<S: Simd, T: Value>(values: &[T]) -> ExponentHistogram {
    // A chunk has fewer values than a `u32` can count.
    let mut tables: Tables = [[0; BINS]; 4];
    let (groups, rest) = values.as_chunks();
    for group in groups {
        count::<S, T>(&mut tables, group, LANES);
    }
    count::<S, T>(&mut tables, &padded(rest), rest.len());
    let bins = tables.map(|table| table.map(u64::from));
    total(bins.map(|bins| ExponentHistogram { bins }))
}

/// Counts so many values of a group. Not by a closure, which is a function apart and without the CPU's instructions.
#[inline(always)]
fn count<S: Simd, T: Value>(tables: &mut Tables, group: &Group<T>, length: usize) {
    // As the gradients of most rows of an embedding are. One by one, each would wait for the count before it.
    if group
        .iter()
        .all(|value| value.magnitude() == T::Magnitude::default())
    {
        tables[0][0] += length as u32;
        return;
    }
    let mut bins = [0; LANES];
    for (bin, value) in bins.iter_mut().zip(T::widen::<S>(group)) {
        *bin = bin_of(value);
    }
    for (at, bin) in bins[..length].iter().enumerate() {
        tables[at % tables.len()][*bin as usize] += 1;
    }
}

#[inline(always)]
fn bin_of<R: Real>(value: R) -> u32 {
    let (fraction, bias) = if size_of::<R>() == 4 {
        (23, 127)
    } else {
        (52, 1023)
    };
    let magnitude = value.magnitude();
    let exponent = (magnitude.into() >> fraction) as i32 - bias;
    if magnitude == R::Magnitude::default() {
        0
    } else if magnitude >= R::INFINITY {
        1
    } else {
        ExponentHistogram::bin(exponent)
    }
}

//! One loop for all that is made of tensors and found in them: group by group, block by block, in chunks that threads share.

use burn::tensor::ElementConversion;
use burn_flex::FlexTensor;
use burn_std::Bytes;

use super::cpu::{Cpu, LANES, Real, Value, Work, run};
use super::measure::{ChunkStatus, Pair, Sums, join, pairs};
use super::{memory, shared, value};
use crate::{ExponentHistogram, TensorStatus, histogram::BINS, job::Weights};

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
struct Formula<R, const MEASURED: bool, const BLENDED: bool> {
    factor: R,
    keep: R,
    /// From here on, what is made counts as large.
    edge: f32,
}

impl<R: Real, const MEASURED: bool, const BLENDED: bool> Formula<R, MEASURED, BLENDED> {
    #[inline(always)]
    fn make<C: Cpu, S: Value, T: Value<Real = R>>(
        self,
        cpu: C,
        source: &[S; LANES],
        target: &[T; LANES],
    ) -> [T; LANES] {
        let (read, held) = (S::widen(cpu, source), T::widen(cpu, target));
        let made = std::array::from_fn(|i| {
            let product = read[i].elem::<R>() * self.factor;
            match BLENDED {
                true => self.keep * held[i] + product,
                false => product,
            }
        });
        T::narrow(cpu, made)
    }

    #[inline(always)]
    fn pair<C: Cpu, S: Value, T: Value<Real = R>, const STREAM: bool>(
        self,
        cpu: C,
        [a, b]: &Pair<S>,
        [to_a, to_b]: &mut Pair<T>,
        sums: &mut Sums<T>,
    ) {
        let made = [self.make(cpu, a, to_a), self.make(cpu, b, to_b)];
        if MEASURED {
            sums.add(cpu, &made);
        }
        let [a, b] = made;
        if STREAM {
            cpu.stream(to_a, a);
            cpu.stream(to_b, b);
        } else {
            (*to_a, *to_b) = (a, b);
        }
    }

    /// Makes a block, of the source or of what is there already.
    #[inline(always)]
    fn block<C: Cpu, S: Value, T: Value<Real = R>>(
        self,
        cpu: C,
        source: Option<&[S]>,
        target: &mut [T],
        streams: bool,
        found: &mut ChunkStatus<T>,
    ) {
        let mut sums = Sums::default();
        let whole = target.len() / PAIR * PAIR;
        let (targets, rest) = target.split_at_mut(whole);
        let (targets, _) = targets.as_chunks_mut().0.as_chunks_mut();
        match source {
            Some(source) if streams => {
                for (source, target) in pairs(source).iter().zip(&mut *targets) {
                    self.pair::<C, S, T, true>(cpu, source, target, &mut sums);
                }
            }
            Some(source) => {
                for (source, target) in pairs(source).iter().zip(&mut *targets) {
                    self.pair::<C, S, T, false>(cpu, source, target, &mut sums);
                }
            }
            None => {
                for target in &mut *targets {
                    let source: Pair<S> = bytemuck::cast(*target);
                    self.pair::<C, S, T, false>(cpu, &source, target, &mut sums);
                }
            }
        }
        if MEASURED {
            found.add(targets, &sums);
        }
        // Less than a pair.
        for (at, rest) in rest.chunks_mut(LANES).enumerate() {
            let source: [S; LANES] = match source {
                Some(source) => padded(&source[whole + at * LANES..]),
                None => bytemuck::cast(padded(rest)),
            };
            let made = self.make(cpu, &source, &padded(rest));
            rest.copy_from_slice(&made[..rest.len()]);
            if MEASURED {
                found.add_each(rest);
            }
        }
    }
}

/// What one thread measures at a time.
struct Inspect<'a, T>(&'a [T], f32);

impl<T: Value> Work for Inspect<'_, T> {
    type Output = TensorStatus;

    #[inline(always)]
    fn run<C: Cpu>(self, cpu: C) -> TensorStatus {
        let mut found = ChunkStatus::new(self.1);
        let whole = pairs(self.0);
        for block in whole.chunks(BLOCK / PAIR) {
            let mut sums = Sums::default();
            for pair in block {
                sums.add(cpu, pair);
            }
            found.add(block, &sums);
        }
        found.add_each(&self.0[whole.len() * PAIR..]);
        found.status()
    }
}

/// What one thread makes at a time: of the source, or of what is there already. `S` and `T` are the same then.
struct Make<'a, S, T: Value, const MEASURED: bool, const BLENDED: bool> {
    source: Option<&'a [S]>,
    target: &'a mut [T],
    formula: Formula<T::Real, MEASURED, BLENDED>,
    streams: bool,
}

impl<S: Value, T: Value, const M: bool, const K: bool> Work for Make<'_, S, T, M, K> {
    type Output = TensorStatus;

    #[inline(always)]
    fn run<C: Cpu>(self, cpu: C) -> TensorStatus {
        let formula = self.formula;
        let factor: f64 = formula.factor.into();
        // What is finite may become infinite.
        let overflows = M && (factor.is_nan() || factor.abs() > 1.0);
        let mut found = ChunkStatus::new(formula.edge);
        let mut before = 0;
        for (at, target) in self.target.chunks_mut(BLOCK).enumerate() {
            let source = self.source.map(|all| &all[at * BLOCK..][..target.len()]);
            if overflows {
                before += not_finite(source.unwrap_or_else(|| bytemuck::cast_slice(target)));
            }
            formula.block(cpu, source, target, self.streams, &mut found);
        }
        if self.streams {
            cpu.streamed();
        }
        if !M {
            return TensorStatus::default();
        }
        let mut found = found.status();
        if overflows {
            found.non_finite_before = before;
        }
        found
    }
}

/// A group that is zero where the values end.
pub(super) fn padded<T: Value>(values: &[T]) -> [T; LANES] {
    let mut group = [T::zeroed(); LANES];
    let length = values.len().min(LANES);
    group[..length].copy_from_slice(&values[..length]);
    group
}

#[inline(always)]
fn not_finite<T: Value>(block: &[T]) -> u64 {
    let mut count = T::Magnitude::default();
    for value in block {
        count += T::Magnitude::from(value.magnitude() >= T::INFINITY);
    }
    count.into()
}

/// What is found in each chunk of a tensor, by several threads if there is enough to do.
fn by_chunk<T: Value, R: Send>(mut tensor: FlexTensor, work: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    make_whole(&mut tensor);
    let values: &[T] = tensor.storage();
    if values.len() <= CHUNK {
        return vec![work(values)];
    }
    shared(values.chunks(CHUNK), values.len(), work)
}

/// In the order of the chunks: the same sum on every run, whichever thread was first.
fn joined(found: Vec<TensorStatus>) -> TensorStatus {
    found.into_iter().fold(TensorStatus::default(), join)
}

/// What is found in a tensor.
pub(super) fn inspect<T: Value>(tensor: FlexTensor, edge: f32) -> TensorStatus {
    joined(by_chunk(tensor, |values: &[T]| run(Inspect(values, edge))))
}

/// Works a formula out, with several threads if there is enough to do.
fn make<S: Value, T: Value, const MEASURED: bool, const BLENDED: bool>(
    source: Option<&[S]>,
    target: &mut [T],
    formula: Formula<T::Real, MEASURED, BLENDED>,
) -> TensorStatus {
    let streams = MEASURED && size_of_val(target) >= STREAMED;
    let chunk = |(at, target): (usize, _)| {
        let source = source.map(|source| &source[at * CHUNK..]);
        run(Make {
            source,
            target,
            formula,
            streams,
        })
    };
    let values = target.len();
    if values <= CHUNK {
        return chunk((0, target));
    }
    joined(shared(target.chunks_mut(CHUNK).enumerate(), values, chunk))
}

/// The product with a factor: in place where the dtype stays and nobody else holds the buffer, and else in new memory, in
/// which values lie in the order in which the tensor's do.
pub(super) fn product<S: Value, T: Value, const MEASURED: bool>(
    mut tensor: FlexTensor,
    factor: f32,
    edge: f32,
) -> (FlexTensor, TensorStatus) {
    let (factor, keep) = (factor.elem(), T::Real::default());
    let formula = Formula::<_, MEASURED, false> { factor, keep, edge };
    make_whole(&mut tensor);
    if S::dtype() == T::dtype()
        && let Some(target) = tensor.try_storage_mut::<T>()
    {
        let found = make(None::<&[S]>, target, formula);
        return (tensor, found);
    }
    let source: &[S] = tensor.storage();
    let mut bytes = match MEASURED {
        true => memory::take(source.len() * size_of::<T>()),
        false => Bytes::from_elems(bytemuck::zeroed_vec::<T>(source.len())),
    };
    let target: &mut [T] = bytemuck::cast_slice_mut(&mut bytes);
    let found = make(Some(source), target, formula);
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
        let (factor, keep, edge) = (add.elem(), keep.elem(), f32::INFINITY);
        let formula = Formula::<_, false, true> { factor, keep, edge };
        make(Some(source.storage::<S>()), target.storage_mut::<T>(), formula);
    }));
    target
}

/// Has a tensor be all of its buffer, by a copy where it is not.
fn make_whole(tensor: &mut FlexTensor) {
    if !is_whole(tensor) {
        *tensor = tensor.to_contiguous();
    }
}

/// Whether the tensor is all of its buffer, in whatever order its dimensions are.
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

/// Counts by exponent.
pub(super) type Counts = [u64; BINS];

/// Tables that take turns, so that a value does not wait for the count of the one before it.
const TABLES: usize = 4;

pub(super) fn counts<T: Value>(tensor: FlexTensor) -> Counts {
    sums(by_chunk(tensor, |values: &[T]| run(Count(values))))
}

pub(super) fn sums(all: impl IntoIterator<Item = Counts>) -> Counts {
    let mut sums = [0; BINS];
    for (bin, sum) in all.into_iter().flatten().enumerate() {
        sums[bin % BINS] += sum;
    }
    sums
}

struct Count<'a, T>(&'a [T]);

impl<T: Value> Work for Count<'_, T> {
    type Output = Counts;

    #[inline(always)]
    fn run<C: Cpu>(self, cpu: C) -> Counts {
        // A chunk has fewer values than a `u32` can count.
        let mut tables = [[0u32; BINS]; TABLES];
        let mut count = |values: &[T::Real]| {
            for line in values.chunks(TABLES) {
                for (table, value) in tables.iter_mut().zip(line) {
                    table[place(*value)] += 1;
                }
            }
        };
        let (groups, rest) = self.0.as_chunks::<LANES>();
        for group in groups {
            count(&T::widen(cpu, group));
        }
        count(&T::widen(cpu, &padded(rest))[..rest.len()]);
        sums(tables.map(|table| table.map(u64::from)))
    }
}

/// The bin of an f32 or f64.
#[inline(always)]
fn place<R: Real>(value: R) -> usize {
    const MIN: i32 = ExponentHistogram::MIN_EXPONENT;
    let (fraction, bias) = match size_of::<R>() {
        4 => (23, 127),
        _ => (52, 1023),
    };
    let magnitude = value.magnitude();
    let exponent = (magnitude.into() >> fraction) as i32 - bias;
    // Below the range, the range, above the range.
    let inside = exponent.clamp(MIN - 1, ExponentHistogram::MAX_EXPONENT + 1) - MIN + 3;
    if magnitude == R::Magnitude::default() {
        0
    } else if magnitude >= R::INFINITY {
        1
    } else {
        inside as usize
    }
}

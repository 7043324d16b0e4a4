//! One loop for all that is made of tensors: group by group, block by block, in chunks that threads share.

use burn::tensor::ElementConversion;
use burn_flex::FlexTensor;
use burn_std::Bytes;
use rayon::prelude::*;

use super::{
    cpu::{Cpu, LANES, Work, run},
    measure::{Found, Pair, Row, Sums, pairs},
    memory,
    value::{Real, Value},
};

/// Values that one thread takes at a time: enough to be worth the hand-over, few enough to share evenly.
pub(super) const CHUNK: usize = 1 << 16;
/// Bytes of a product from which on it goes past the caches, which it would fill.
const STREAMED: usize = 1 << 22;
/// Values of a pair of groups.
const PAIR: usize = 2 * LANES;
/// Values that are judged together: each lane sums 32 squares, and their errors do not add up over blocks.
const BLOCK: usize = 32 * PAIR;

/// What is made of a group of the source, and of what the target holds.
pub(super) trait Formula<S, T>: Sync {
    /// Whether what is made is measured.
    const MEASURED: bool;

    fn make<C: Cpu>(&self, cpu: C, source: &[S; LANES], target: &[T; LANES]) -> [T; LANES];

    /// Whether it may make something infinite of something finite.
    fn overflows(&self) -> bool {
        false
    }
}

/// The product with a factor, rounded to the target's dtype.
pub(super) struct Scale<R, const MEASURED: bool>(pub(super) R);

impl<R: Real, S: Value<Real = R>, T: Value<Real = R>, const M: bool> Formula<S, T> for Scale<R, M> {
    const MEASURED: bool = M;

    #[inline(always)]
    fn make<C: Cpu>(&self, cpu: C, source: &[S; LANES], _: &[T; LANES]) -> [T; LANES] {
        let wide = S::widen(cpu, source);
        T::narrow(cpu, std::array::from_fn(|i| wide[i] * self.0))
    }

    fn overflows(&self) -> bool {
        let factor: f64 = self.0.into();
        factor.is_nan() || factor.abs() > 1.0
    }
}

/// `keep` times the target and `add` times the source.
pub(super) struct Blend<R> {
    pub(super) keep: R,
    pub(super) add: R,
}

impl<S: Value, T: Real> Formula<S, T> for Blend<T> {
    const MEASURED: bool = false;

    #[inline(always)]
    fn make<C: Cpu>(&self, cpu: C, source: &[S; LANES], target: &[T; LANES]) -> [T; LANES] {
        let source = S::widen(cpu, source).map(|value| value.elem::<T>());
        std::array::from_fn(|i| self.keep * target[i] + self.add * source[i])
    }
}

/// What one thread measures at a time.
struct Look<'a, T>(&'a [T], f32);

impl<T: Value> Work for Look<'_, T> {
    type Output = Row;

    #[inline(always)]
    fn run<C: Cpu>(self, cpu: C) -> Row {
        let mut found = Found::new(self.1);
        let whole = pairs(self.0);
        for block in whole.chunks(BLOCK / PAIR) {
            let mut sums = Sums::new();
            for pair in block {
                sums.add(cpu, pair);
            }
            found.add(block, &sums);
        }
        found.add_each(&self.0[whole.len() * PAIR..]);
        found.row(None)
    }
}

/// What one thread makes at a time: of the source, or of what is there already. `S` and `T` are the same then.
struct Make<'a, S, T, J> {
    source: Option<&'a [S]>,
    target: &'a mut [T],
    formula: &'a J,
    edge: f32,
    streams: bool,
}

impl<S: Value, T: Value, J: Formula<S, T>> Make<'_, S, T, J> {
    #[inline(always)]
    fn pair<C: Cpu, const STREAM: bool>(
        &self,
        cpu: C,
        source: &Pair<S>,
        target: &mut Pair<T>,
        sums: &mut Sums<T>,
    ) {
        let ([a, b], [to_a, to_b]) = (source, target);
        let made = [
            self.formula.make(cpu, a, to_a),
            self.formula.make(cpu, b, to_b),
        ];
        if J::MEASURED {
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
}

impl<S: Value, T: Value, J: Formula<S, T>> Work for Make<'_, S, T, J> {
    type Output = Row;

    #[inline(always)]
    fn run<C: Cpu>(mut self, cpu: C) -> Row {
        let mut found = Found::new(self.edge);
        let counts = J::MEASURED && self.formula.overflows();
        let mut before = 0;
        let target = std::mem::take(&mut self.target);
        for (at, target) in target.chunks_mut(BLOCK).enumerate() {
            let source = self
                .source
                .map(|source| &source[at * BLOCK..][..target.len()]);
            if counts {
                before += not_finite(source.unwrap_or_else(|| bytemuck::cast_slice(target)));
            }
            let mut sums = Sums::new();
            let (whole, rest) = target.split_at_mut(target.len() / PAIR * PAIR);
            let (targets, _) = whole.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>();
            match source {
                Some(source) if self.streams => {
                    for (source, target) in pairs(source).iter().zip(&mut *targets) {
                        self.pair::<C, true>(cpu, source, target, &mut sums);
                    }
                }
                Some(source) => {
                    for (source, target) in pairs(source).iter().zip(&mut *targets) {
                        self.pair::<C, false>(cpu, source, target, &mut sums);
                    }
                }
                None => {
                    for target in &mut *targets {
                        let source = bytemuck::cast(*target);
                        self.pair::<C, false>(cpu, &source, target, &mut sums);
                    }
                }
            }
            if J::MEASURED {
                found.add(targets, &sums);
            }
            // Less than a pair.
            let first = targets.len() * PAIR;
            for (at, rest) in rest.chunks_mut(LANES).enumerate() {
                let source = match source {
                    Some(source) => padded(&source[first + at * LANES..]),
                    None => bytemuck::cast(padded(rest)),
                };
                let made = self.formula.make(cpu, &source, &padded(rest));
                rest.copy_from_slice(&made[..rest.len()]);
                if J::MEASURED {
                    found.add_each(rest);
                }
            }
        }
        if self.streams {
            cpu.streamed();
        }
        found.row(counts.then_some(before))
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

/// In the order of the chunks: the same sum on every run, whichever thread was first.
fn joined(rows: impl IndexedParallelIterator<Item = Row>) -> Row {
    let rows: Vec<Row> = rows.collect();
    rows.into_iter().fold(Row::default(), Row::join)
}

/// What is found in a tensor, by several threads if there is enough to do.
pub(super) fn look<T: Value>(tensor: &FlexTensor, edge: f32) -> Row {
    read(tensor, |values: &[T]| match values.len() <= CHUNK {
        true => run(Look(values, edge)),
        false => joined((values.par_chunks(CHUNK)).map(|values| run(Look(values, edge)))),
    })
}

/// Works a formula out, with several threads if there is enough to do.
fn make<S: Value, T: Value, J: Formula<S, T>>(
    source: Option<&[S]>,
    target: &mut [T],
    formula: &J,
    edge: f32,
) -> Row {
    let streams = J::MEASURED && size_of_val(target) >= STREAMED;
    let chunk = |source, target| {
        run(Make {
            source,
            target,
            formula,
            edge,
            streams,
        })
    };
    if target.len() <= CHUNK {
        return chunk(source, target);
    }
    let targets = target.par_chunks_mut(CHUNK).enumerate();
    joined(targets.map(|(at, target)| {
        let source = source.map(|source| &source[at * CHUNK..][..target.len()]);
        chunk(source, target)
    }))
}

/// What the formula makes of a tensor: in place where the dtype stays and nobody else holds the buffer, and else in new
/// memory, in which values lie in the order in which the tensor's do.
pub(super) fn product<S: Value, T: Value, J: Formula<S, T>>(
    mut tensor: FlexTensor,
    formula: &J,
    edge: f32,
) -> (FlexTensor, Row) {
    if !is_whole::<S>(&tensor) {
        // A copy that is ours alone, and whole.
        tensor = tensor.to_contiguous();
    }
    if S::dtype() == T::dtype()
        && let Some(target) = tensor.try_storage_mut::<T>()
    {
        let row = make::<S, T, J>(None, target, formula, edge);
        return (tensor, row);
    }
    let source: &[S] = tensor.storage();
    let mut bytes = match J::MEASURED {
        true => memory::take(source.len() * size_of::<T>()),
        false => Bytes::from_elems(bytemuck::zeroed_vec::<T>(source.len())),
    };
    let target = bytemuck::cast_slice_mut(&mut bytes);
    let row = make::<S, T, J>(Some(source), target, formula, edge);
    let product = FlexTensor::new(bytes, tensor.layout().clone(), T::dtype());
    (product, row)
}

/// A weighted sum, over the target's values if nobody else holds them, and else over a copy.
pub(super) fn blend<S: Value, T: Real>(
    mut target: FlexTensor,
    source: &FlexTensor,
    formula: &Blend<T>,
) -> FlexTensor {
    target = target.to_contiguous();
    let source = source.to_contiguous();
    let values = target.storage_mut();
    make::<S, T, _>(Some(source.storage()), values, formula, f32::INFINITY);
    target
}

/// Reads a tensor's values, in whatever order its dimensions are.
pub(super) fn read<T: Value, R>(tensor: &FlexTensor, work: impl FnOnce(&[T]) -> R) -> R {
    match is_whole::<T>(tensor) {
        true => work(tensor.storage()),
        false => work(tensor.to_contiguous().storage()),
    }
}

/// Whether the tensor is all of its buffer, in whatever order its dimensions are.
pub(super) fn is_whole<T>(tensor: &FlexTensor) -> bool {
    let layout = tensor.layout();
    let whole = tensor.bytes().len() == layout.num_elements() * size_of::<T>();
    if !whole || layout.start_offset() != 0 || layout.is_contiguous() {
        return whole && layout.start_offset() == 0;
    }
    let strides = layout
        .strides()
        .iter()
        .map(|stride| usize::try_from(*stride).ok());
    let strides: Option<Vec<usize>> = strides.collect();
    strides.is_some_and(|strides| burn_std::is_dense(layout.shape(), &strides))
}

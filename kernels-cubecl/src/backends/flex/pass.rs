//! One loop for all that is made of tensors: group by group, block by block, in chunks that threads share.

use burn_flex::FlexTensor;
use burn_std::Bytes;
use rayon::prelude::*;

use super::{
    cpu::{Cpu, LANES, Work, run},
    measure::{BLOCK, Found, Row, Sums},
    memory,
    value::{Real, Value},
};

/// Values that one thread takes at a time: enough to be worth the hand-over, few enough to share evenly.
pub(super) const CHUNK: usize = 1 << 16;

/// What is made of a group of the source, and of what the target holds.
pub(super) trait Job<S, T>: Sync {
    /// Whether what is made is measured.
    const MEASURED: bool;

    fn make<C: Cpu>(&self, cpu: C, source: [S; LANES], target: [T; LANES]) -> [T; LANES];

    /// Whether it may make something infinite of something finite.
    fn overflows(&self) -> bool {
        false
    }
}

/// The product with a factor, rounded to the target's dtype.
pub(super) struct Scale<R, const MEASURED: bool>(pub(super) R);

impl<R: Real, S: Value<Real = R>, T: Value<Real = R>, const M: bool> Job<S, T> for Scale<R, M> {
    const MEASURED: bool = M;

    #[inline(always)]
    fn make<C: Cpu>(&self, cpu: C, source: [S; LANES], _: [T; LANES]) -> [T; LANES] {
        let wide = S::widen(cpu, source);
        T::narrow(cpu, std::array::from_fn(|i| wide[i] * self.0))
    }

    fn overflows(&self) -> bool {
        self.0.exact().is_nan() || self.0.exact().abs() > 1.0
    }
}

/// What is there.
pub(super) struct Look;

impl<T> Job<T, T> for Look {
    const MEASURED: bool = true;

    #[inline(always)]
    fn make<C: Cpu>(&self, _: C, source: [T; LANES], _: [T; LANES]) -> [T; LANES] {
        source
    }
}

/// `keep` times the target and `add` times the source.
pub(super) struct Blend<R> {
    pub(super) keep: R,
    pub(super) add: R,
}

impl<S: Value, T: Real> Job<S, T> for Blend<T> {
    const MEASURED: bool = false;

    #[inline(always)]
    fn make<C: Cpu>(&self, cpu: C, source: [S; LANES], target: [T; LANES]) -> [T; LANES] {
        let source = S::widen(cpu, source).map(|value| T::rounded(value.exact()));
        std::array::from_fn(|i| self.keep * target[i] + self.add * source[i])
    }
}

/// Values that are read, and values that are written, as many of each. Only one of them where nothing is written, or where
/// values are overwritten: `S` and `T` are the same then.
struct Place<'a, S, T>(Option<&'a [S]>, Option<&'a mut [T]>);

impl<S: Value, T: Value> Place<'_, S, T> {
    fn len(&self) -> usize {
        self.source().len()
    }

    fn split_at(self, at: usize) -> [Self; 2] {
        let (source, sources) = self.0.map(|source| source.split_at(at)).unzip();
        let (target, targets) = self.1.map(|target| target.split_at_mut(at)).unzip();
        [Self(source, target), Self(sources, targets)]
    }

    fn source(&self) -> &[S] {
        match (self.0, &self.1) {
            (None, Some(target)) => bytemuck::cast_slice(target),
            (source, _) => source.unwrap_or_default(),
        }
    }

    fn target(&self) -> &[T] {
        match &self.1 {
            Some(target) => target,
            None => bytemuck::cast_slice(self.source()),
        }
    }

    /// Does the job to all groups that are whole.
    #[inline(always)]
    fn groups<C: Cpu, J: Job<S, T>>(&mut self, cpu: C, job: &J, sums: &mut Sums<T>) {
        let sources = self.0.map(|source| source.as_chunks().0);
        let targets = self.1.as_mut().map(|target| target.as_chunks_mut().0);
        match (sources, targets) {
            (Some(sources), Some(targets)) => {
                for (source, target) in sources.iter().zip(targets) {
                    *target = make(cpu, job, *source, *target, sums);
                }
            }
            (None, Some(targets)) => {
                for target in targets {
                    *target = make(cpu, job, bytemuck::cast(*target), *target, sums);
                }
            }
            (sources, None) => {
                for source in sources.into_iter().flatten() {
                    make(cpu, job, *source, bytemuck::cast(*source), sums);
                }
            }
        }
    }
}

#[inline(always)]
fn make<C: Cpu, S, T: Value, J: Job<S, T>>(
    cpu: C,
    job: &J,
    source: [S; LANES],
    target: [T; LANES],
    sums: &mut Sums<T>,
) -> [T; LANES] {
    let made = job.make(cpu, source, target);
    if J::MEASURED {
        sums.add(cpu, made);
    }
    made
}

/// As much as one thread takes at a time.
struct Chunk<'a, S, T, J> {
    place: Place<'a, S, T>,
    job: &'a J,
    edge: f32,
}

impl<S: Value, T: Value, J: Job<S, T>> Work for Chunk<'_, S, T, J> {
    type Output = Row;

    #[inline(always)]
    fn run<C: Cpu>(self, cpu: C) -> Row {
        let mut found = Found::new(self.edge);
        let mut before = (J::MEASURED && self.job.overflows()).then_some(0);
        let mut rest = self.place;
        while rest.len() >= LANES {
            let length = rest.len().min(BLOCK) / LANES * LANES;
            let [mut block, others] = rest.split_at(length);
            rest = others;
            before = before.map(|before| before + not_finite(block.source()));
            let mut sums = Sums::new();
            block.groups(cpu, self.job, &mut sums);
            if J::MEASURED {
                found.add(block.target(), &sums);
            }
        }
        // Less than a group.
        before = before.map(|before| before + not_finite(rest.source()));
        let made = self
            .job
            .make(cpu, padded(rest.source()), padded(rest.target()));
        let made = &made[..rest.len()];
        if let Some(target) = rest.1 {
            target.copy_from_slice(made);
        }
        if J::MEASURED {
            found.add_each(made);
        }
        found.row(before)
    }
}

/// A group that is zero where the values end.
pub(super) fn padded<T: Value>(values: &[T]) -> [T; LANES] {
    let mut group = [T::zeroed(); LANES];
    group[..values.len()].copy_from_slice(values);
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

/// Does the job, with several threads if there is enough to do.
fn work<S: Value, T: Value, J: Job<S, T>>(mut place: Place<S, T>, job: &J, edge: f32) -> Row {
    let chunk = |place| run(Chunk { place, job, edge });
    if place.len() <= CHUNK {
        return chunk(place);
    }
    let mut chunks = Vec::with_capacity(place.len().div_ceil(CHUNK));
    while place.len() > CHUNK {
        let [first, rest] = place.split_at(CHUNK);
        chunks.push(first);
        place = rest;
    }
    chunks.push(place);
    // In the order of the chunks: the same sum on every run, whichever thread was first.
    let rows: Vec<Row> = chunks.into_par_iter().map(chunk).collect();
    rows.into_iter().fold(Row::default(), Row::join)
}

/// What is found in a tensor.
pub(super) fn look<T: Value>(tensor: &FlexTensor, edge: f32) -> Row {
    read(tensor, |values: &[T]| {
        work::<T, T, _>(Place(Some(values), None), &Look, edge)
    })
}

/// What the job makes of a tensor: in place where the dtype stays and nobody else holds the buffer, and else in new
/// memory, in which values lie in the order in which the tensor's do.
pub(super) fn product<S: Value, T: Value, J: Job<S, T>>(
    mut tensor: FlexTensor,
    job: &J,
    edge: f32,
) -> (FlexTensor, Row) {
    if !is_whole::<S>(&tensor) {
        // A copy that is ours alone, and whole.
        tensor = tensor.to_contiguous();
    }
    if S::dtype() == T::dtype()
        && let target @ Some(_) = tensor.try_storage_mut::<T>()
    {
        let row = work::<S, T, J>(Place(None, target), job, edge);
        return (tensor, row);
    }
    let source: &[S] = tensor.storage();
    let mut bytes = match J::MEASURED {
        true => memory::take(source.len() * size_of::<T>()),
        false => Bytes::from_elems(bytemuck::zeroed_vec::<T>(source.len())),
    };
    let target = Some(bytemuck::cast_slice_mut(&mut bytes));
    let row = work::<S, T, J>(Place(Some(source), target), job, edge);
    let product = FlexTensor::new(bytes, tensor.layout().clone(), T::dtype());
    (product, row)
}

/// A weighted sum, over the target's values if nobody else holds them, and else over a copy.
pub(super) fn blend<S: Value, T: Real>(
    mut target: FlexTensor,
    source: &FlexTensor,
    job: &Blend<T>,
) -> FlexTensor {
    target = target.to_contiguous();
    let source = source.to_contiguous();
    let place = Place(Some(source.storage()), Some(target.storage_mut()));
    work::<S, T, _>(place, job, f32::INFINITY);
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
fn is_whole<T>(tensor: &FlexTensor) -> bool {
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

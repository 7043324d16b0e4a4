//! What is found in values: side by side where all of a block are ordinary, and else again, one by one.

use burn::tensor::ElementConversion;

use super::cpu::{Cpu, LANES, Value};
use crate::TensorStatus;
use crate::status::{COUNT_BASE, FIELDS};

/// Groups whose squares are summed separately, so that no sum waits for the one before it.
pub(super) type Pair<T> = [[T; LANES]; 2];

/// The pairs of groups that are whole.
#[inline(always)]
pub(super) fn pairs<T>(values: &[T]) -> &[Pair<T>] {
    values.as_chunks().0.as_chunks().0
}

/// What is found in ordinary values of a block.
#[derive(Default)]
pub(super) struct Sums<T: Value> {
    max: [T::Magnitude; LANES],
    zeros: [T::Magnitude; LANES],
    /// Of the groups of a pair.
    squares: Pair<T::Real>,
}

impl<T: Value> Sums<T> {
    /// Adds a pair. Its groups are named, not counted: with an index that is no constant the sums stay in memory and not
    /// in registers, and each value takes its turn.
    #[inline(always)]
    pub(super) fn add<C: Cpu>(&mut self, cpu: C, [a, b]: &Pair<T>) {
        let zero = T::Magnitude::default();
        for i in 0..LANES {
            let (a, b) = (a[i].magnitude(), b[i].magnitude());
            self.max[i] = self.max[i].max(a).max(b);
            self.zeros[i] += (a == zero).into();
            self.zeros[i] += (b == zero).into();
        }
        for (squares, group) in self.squares.iter_mut().zip([a, b]) {
            cpu.add_squares(squares, T::widen(cpu, group));
        }
    }
}

/// What is found in a chunk of blocks.
#[derive(Default)]
pub(super) struct ChunkStatus<T: Value> {
    edge: T::Magnitude,
    max: T::Magnitude,
    /// Of ordinary blocks. A chunk has fewer values than a magnitude can count.
    zeros: [T::Magnitude; LANES],
    squares: [f64; LANES],
    /// The rest.
    status: TensorStatus,
}

impl<T: Value> ChunkStatus<T> {
    /// Counts what is at least `edge` large.
    pub(super) fn new(edge: f32) -> Self {
        let mut least = edge.elem::<T>().magnitude();
        least += (T::of_magnitude(least) < f64::from(edge)).into();
        Self {
            edge: least,
            ..Self::default()
        }
    }

    /// Adds the pairs of a block.
    #[inline(always)]
    pub(super) fn add(&mut self, pairs: &[Pair<T>], sums: &Sums<T>) {
        let max = sums.max.iter().copied().max().unwrap_or_default();
        let ordinary = T::SAFE.contains(&max) || max == T::Magnitude::default();
        if !ordinary || max >= self.edge {
            return self.add_each(pairs.as_flattened().as_flattened());
        }
        self.max = self.max.max(max);
        for i in 0..LANES {
            self.zeros[i] += sums.zeros[i];
            self.squares[i] += sums.squares[0][i].into() + sums.squares[1][i].into();
        }
    }

    /// Adds any values.
    #[inline(never)]
    pub(super) fn add_each(&mut self, values: &[T]) {
        let finite = || (values.iter().map(|v| v.magnitude())).filter(|m| *m < T::INFINITY);
        let max = finite().max().unwrap_or_default();
        // Relative to the largest, squares neither overflow nor vanish where they count.
        let unit = power_near(T::of_magnitude(max));
        let ratios = finite().map(|magnitude| T::of_magnitude(magnitude) / unit);
        let squares: f64 = ratios.map(|ratio| ratio * ratio).sum();
        let count = |is: &dyn Fn(T::Magnitude) -> bool| {
            values.iter().filter(|value| is(value.magnitude())).count() as u64
        };
        let status = &mut self.status;
        self.max = self.max.max(max);
        status.above += count(&|magnitude| magnitude >= self.edge);
        status.non_finite += count(&|magnitude| magnitude >= T::INFINITY);
        status.zeros += count(&|magnitude| magnitude == T::Magnitude::default());
        status.norm = status.norm.hypot(squares.sqrt() * unit);
    }

    /// All that was found, after scaling by a factor that makes nothing infinite.
    #[inline(always)]
    pub(super) fn status(self) -> TensorStatus {
        let (status, squares) = (self.status, self.squares.iter().sum::<f64>());
        TensorStatus {
            non_finite_before: status.non_finite,
            max_abs: T::of_magnitude(self.max),
            zeros: status.zeros + self.zeros.into_iter().map(Into::into).sum::<u64>(),
            norm: status.norm.hypot(squares.sqrt()),
            ..status
        }
    }
}

/// What is found in both.
pub(super) fn join(a: TensorStatus, b: TensorStatus) -> TensorStatus {
    TensorStatus {
        elements: a.elements + b.elements,
        above: a.above + b.above,
        non_finite_before: a.non_finite_before + b.non_finite_before,
        non_finite: a.non_finite + b.non_finite,
        zeros: a.zeros + b.zeros,
        max_abs: a.max_abs.max(b.max_abs),
        norm: a.norm.hypot(b.norm),
    }
}

/// The row that [`Status`](crate::Status) describes.
pub(super) fn row(found: &TensorStatus) -> [f64; FIELDS] {
    let unit = power_near(found.max_abs).max(f32::MIN_POSITIVE.into());
    let bad = [found.non_finite_before, found.non_finite];
    let counts = [found.above, bad[0], bad[1], found.zeros].map(count_fields);
    let mut row = [0.0; FIELDS];
    let (of_counts, rest) = row.split_at_mut(2 * counts.len());
    of_counts.copy_from_slice(counts.as_flattened());
    rest.copy_from_slice(&[found.max_abs, unit, found.norm / unit]);
    row
}

/// The largest power of two that is not above a value, so that no digit is lost in this unit; above zero.
fn power_near(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & f64::INFINITY.to_bits()).max(f64::MIN_POSITIVE)
}

pub(super) fn count_fields(count: u64) -> [f64; 2] {
    let base = u64::from(COUNT_BASE);
    [(count / base) as f64, (count % base) as f64]
}

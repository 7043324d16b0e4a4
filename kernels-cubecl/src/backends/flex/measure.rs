//! What is found in values: side by side where all of a block are ordinary, and else again, one by one.

use burn::tensor::ElementConversion;

use super::{
    cpu::{Cpu, LANES},
    value::Value,
};
use crate::status::{COUNT_BASE, FIELDS};

/// Groups whose squares are summed apart, so that no sum waits for the one before it.
pub(super) type Pair<T> = [[T; LANES]; 2];

/// The pairs of groups that are whole.
#[inline(always)]
pub(super) fn pairs<T>(values: &[T]) -> &[Pair<T>] {
    values.as_chunks().0.as_chunks().0
}

/// What is found in ordinary values of a block.
pub(super) struct Sums<T: Value> {
    max: [T::Magnitude; LANES],
    zeros: [T::Magnitude; LANES],
    /// Of the groups of a pair.
    squares: [[T::Real; LANES]; 2],
}

impl<T: Value> Sums<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self {
            max: [T::Magnitude::default(); LANES],
            zeros: [T::Magnitude::default(); LANES],
            squares: [[T::Real::default(); LANES]; 2],
        }
    }

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
        let [first, second] = &mut self.squares;
        T::add_squares(cpu, first, T::widen(cpu, a));
        T::add_squares(cpu, second, T::widen(cpu, b));
    }
}

/// What is found in a chunk of blocks.
pub(super) struct Found<T: Value> {
    edge: T::Magnitude,
    max: T::Magnitude,
    zeros: [u32; LANES],
    squares: [f64; LANES],
    /// The rest.
    row: Row,
}

impl<T: Value> Found<T> {
    /// Counts what is at least `edge` large.
    pub(super) fn new(edge: f32) -> Self {
        let mut least = edge.elem::<T>().magnitude();
        least += (T::of_magnitude(least) < f64::from(edge)).into();
        Self {
            edge: least,
            max: T::Magnitude::default(),
            zeros: [0; LANES],
            squares: [0.0; LANES],
            row: Row::default(),
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
            self.zeros[i] += sums.zeros[i].into() as u32;
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
        self.max = self.max.max(max);
        self.row.above += count(&|magnitude| magnitude >= self.edge);
        self.row.after += count(&|magnitude| magnitude >= T::INFINITY);
        self.row.zeros += count(&|magnitude| magnitude == T::Magnitude::default());
        self.row.norm = self.row.norm.hypot(squares.sqrt() * unit);
    }

    /// `before`: how many were not finite before scaling, if that may be fewer than afterwards.
    pub(super) fn row(self, before: Option<u64>) -> Row {
        let row = self.row;
        Row {
            before: before.unwrap_or(row.after),
            zeros: row.zeros + self.zeros.into_iter().map(u64::from).sum::<u64>(),
            max_abs: T::of_magnitude(self.max),
            norm: row.norm.hypot(self.squares.iter().sum::<f64>().sqrt()),
            ..row
        }
    }
}

/// The numbers of one tensor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    above: u64,
    before: u64,
    after: u64,
    zeros: u64,
    max_abs: f64,
    norm: f64,
}

impl Row {
    pub(super) fn join(self, other: Self) -> Self {
        Self {
            above: self.above + other.above,
            before: self.before + other.before,
            after: self.after + other.after,
            zeros: self.zeros + other.zeros,
            max_abs: self.max_abs.max(other.max_abs),
            norm: self.norm.hypot(other.norm),
        }
    }

    /// As [`Status`](crate::Status) describes it.
    pub(super) fn fields(&self) -> [f64; FIELDS] {
        let unit = power_near(self.max_abs).max(f32::MIN_POSITIVE.into());
        let mut fields = [0.0; FIELDS];
        let counts = [self.above, self.before, self.after, self.zeros];
        for (pair, count) in fields.chunks_exact_mut(2).zip(counts) {
            pair.copy_from_slice(&count_fields(count));
        }
        fields[8..].copy_from_slice(&[self.max_abs, unit, self.norm / unit]);
        fields
    }
}

/// The largest power of two that is not above a value, so that no digit is lost in this unit; above zero.
fn power_near(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & f64::INFINITY.to_bits()).max(f64::MIN_POSITIVE)
}

pub(super) fn count_fields(count: u64) -> [f64; 2] {
    let base = u64::from(COUNT_BASE);
    [(count / base) as f64, (count % base) as f64]
}

//! What is found in values: side by side where all of a block are ordinary, and else again, one by one.

use burn::tensor::ElementConversion;

use super::{
    cpu::{Cpu, LANES},
    value::{Real, Value},
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
            squares: [[T::Real::rounded(0.0); LANES]; 2],
        }
    }

    /// Adds one group of a pair.
    #[inline(always)]
    pub(super) fn add<C: Cpu>(&mut self, cpu: C, which: usize, group: &[T; LANES]) {
        for i in 0..LANES {
            let magnitude = group[i].magnitude();
            self.max[i] = magnitude.max(self.max[i]);
            self.zeros[i] += (magnitude == T::Magnitude::default()).into();
        }
        T::Real::add_squares(cpu, &mut self.squares[which], T::widen(cpu, group));
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
            self.squares[i] += sums.squares[0][i].exact() + sums.squares[1][i].exact();
        }
    }

    /// Adds any values.
    #[inline(never)]
    pub(super) fn add_each(&mut self, values: &[T]) {
        for value in values {
            let magnitude = value.magnitude();
            self.row.above += u64::from(magnitude >= self.edge);
            if magnitude >= T::INFINITY {
                self.row.after += 1;
                continue;
            }
            self.row.zeros += u64::from(magnitude == T::Magnitude::default());
            self.row.squares.add(T::of_magnitude(magnitude));
            self.max = self.max.max(magnitude);
        }
    }

    /// `before`: how many were not finite before scaling, if that may be fewer than afterwards.
    pub(super) fn row(self, before: Option<u64>) -> Row {
        let mut row = self.row;
        row.before = before.unwrap_or(row.after);
        row.zeros += self.zeros.into_iter().map(u64::from).sum::<u64>();
        row.max_abs = T::of_magnitude(self.max);
        row.squares.medium += self.squares.iter().sum::<f64>();
        row
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
    squares: Squares,
}

impl Row {
    pub(super) fn join(self, other: Self) -> Self {
        Self {
            above: self.above + other.above,
            before: self.before + other.before,
            after: self.after + other.after,
            zeros: self.zeros + other.zeros,
            max_abs: self.max_abs.max(other.max_abs),
            squares: Squares {
                small: self.squares.small + other.squares.small,
                medium: self.squares.medium + other.squares.medium,
                big: self.squares.big + other.squares.big,
            },
        }
    }

    /// As [`Status`](crate::Status) describes it.
    pub(super) fn fields(&self) -> [f64; FIELDS] {
        // A power of two: no digit is lost.
        let unit = f64::from_bits(self.max_abs.to_bits() & f64::INFINITY.to_bits());
        let unit = unit.max(f32::MIN_POSITIVE.into());
        let mut fields = [0.0; FIELDS];
        let counts = [self.above, self.before, self.after, self.zeros];
        for (pair, count) in fields.chunks_exact_mut(2).zip(counts) {
            pair.copy_from_slice(&count_fields(count));
        }
        fields[8..].copy_from_slice(&[self.max_abs, unit, self.squares.norm() / unit]);
        fields
    }
}

pub(super) fn count_fields(count: u64) -> [f64; 2] {
    let base = u64::from(COUNT_BASE);
    [(count / base) as f64, (count % base) as f64]
}

/// A sum of squares in three ranges, so that it neither overflows nor vanishes (J. L. Blue, "A Portable Fortran Program to
/// Find the Euclidean Norm of a Vector", 1978).
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    small: f64,
    medium: f64,
    big: f64,
}

impl Squares {
    /// Magnitudes from here on belong to `big`, and are multiplied by `BIG_SCALE`, 2^-600, before they are squared.
    const BIG: f64 = 1.0e100;
    const BIG_SCALE: f64 = f64::from_bits((1023 - 600) << 52);
    /// Magnitudes below belong to `small`, and are multiplied by `SMALL_SCALE`, 2^600.
    const SMALL: f64 = 1.0e-100;
    const SMALL_SCALE: f64 = f64::from_bits((1023 + 600) << 52);

    /// Adds the square of a finite magnitude.
    fn add(&mut self, magnitude: f64) {
        if magnitude > Self::BIG {
            self.big += (magnitude * Self::BIG_SCALE).powi(2);
        } else if magnitude < Self::SMALL {
            self.small += (magnitude * Self::SMALL_SCALE).powi(2);
        } else {
            self.medium += magnitude * magnitude;
        }
    }

    fn norm(self) -> f64 {
        // The larger range decides; the smaller ones count only beside it.
        let big = self.big.sqrt() / Self::BIG_SCALE;
        let medium = self.medium.sqrt();
        let small = self.small.sqrt() / Self::SMALL_SCALE;
        big.hypot(medium).hypot(small)
    }
}

//! What is found in values: side by side where all of a block are ordinary, and else again, one by one.

use burn::tensor::ElementConversion;

use super::{
    cpu::{Cpu, LANES},
    value::{Real, Value},
};
use crate::words::{Row, Squares};

/// Values that are judged together: each lane sums 32 squares, and their errors do not add up over blocks.
pub(super) const BLOCK: usize = 32 * LANES;

/// What is found in ordinary values of a block.
pub(super) struct Sums<T: Value> {
    max: [T::Magnitude; LANES],
    zeros: [T::Magnitude; LANES],
    squares: [T::Real; LANES],
}

impl<T: Value> Sums<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self {
            max: [T::Magnitude::default(); LANES],
            zeros: [T::Magnitude::default(); LANES],
            squares: [T::Real::rounded(0.0); LANES],
        }
    }

    #[inline(always)]
    pub(super) fn add<C: Cpu>(&mut self, cpu: C, group: [T; LANES]) {
        let magnitudes = group.map(T::magnitude);
        for (max, magnitude) in self.max.iter_mut().zip(magnitudes) {
            *max = magnitude.max(*max);
        }
        for (zeros, magnitude) in self.zeros.iter_mut().zip(magnitudes) {
            *zeros += (magnitude == T::Magnitude::default()).into();
        }
        T::Real::add_squares(cpu, &mut self.squares, T::widen(cpu, group));
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

    /// Adds the groups of a block.
    #[inline(always)]
    pub(super) fn add(&mut self, groups: &[T], sums: &Sums<T>) {
        let max = sums.max.iter().copied().max().unwrap_or_default();
        let ordinary = T::SAFE.contains(&max) || max == T::Magnitude::default();
        if !ordinary || max >= self.edge {
            return self.add_each(groups);
        }
        self.max = self.max.max(max);
        for (all, zeros) in self.zeros.iter_mut().zip(sums.zeros) {
            *all += zeros.into() as u32;
        }
        for (all, squares) in self.squares.iter_mut().zip(sums.squares) {
            *all += squares.exact();
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

pub(super) fn join(a: Row, b: Row) -> Row {
    Row {
        above: a.above + b.above,
        before: a.before + b.before,
        after: a.after + b.after,
        zeros: a.zeros + b.zeros,
        max_abs: a.max_abs.max(b.max_abs),
        squares: Squares {
            small: a.squares.small + b.squares.small,
            medium: a.squares.medium + b.squares.medium,
            big: a.squares.big + b.squares.big,
        },
    }
}

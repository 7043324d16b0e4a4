//! What is found in values: side by side where all of a block are ordinary, and else again, one by one.

use burn::tensor::ElementConversion;
use macerator::Simd;

use super::cpu::{Group, LANES, Real, Value};
use crate::status::{TensorStatus, power_near};

/// Groups whose squares are summed separately, so that no sum waits for the one before it.
pub(super) type Pair<T> = [Group<T>; 2];

/// The pairs of groups that are whole.
#[inline(always)]
pub(super) fn pairs<T>(values: &[T]) -> &[Pair<T>] {
    values.as_chunks().0.as_chunks().0
}

/// The sums over a block, if its values are ordinary.
#[derive(Default)]
pub(super) struct Sums<T: Value> {
    max: Group<T::Magnitude>,
    zeros: Group<T::Magnitude>,
    /// The sums for both groups of a pair.
    squares: Pair<T::Real>,
}

impl<T: Value> Sums<T> {
    /// Adds a pair. Its groups are named, not counted: with an index that is no constant the sums stay in memory and not
    /// in registers, and each value takes its turn.
    #[inline(always)]
    pub(super) fn add<S: Simd>(&mut self, [a, b]: &Pair<T>) {
        let zero = T::Magnitude::default();
        for i in 0..LANES {
            let (a, b) = (a[i].magnitude(), b[i].magnitude());
            self.max[i] = self.max[i].max(a).max(b);
            self.zeros[i] += (a == zero).into();
            self.zeros[i] += (b == zero).into();
        }
        for (squares, group) in self.squares.iter_mut().zip([a, b]) {
            T::Real::add_squares::<S>(squares, T::widen::<S>(group));
        }
    }
}

/// The findings in a chunk of blocks.
#[derive(Default)]
pub(super) struct Found<T: Value> {
    edge: T::Magnitude,
    max: T::Magnitude,
    /// The zeros of ordinary blocks. A chunk has fewer values than a magnitude can count.
    zeros: Group<T::Magnitude>,
    squares: Group<f64>,
    /// The rest.
    status: TensorStatus,
}

impl<T: Value> Found<T> {
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
        let magnitudes = || values.iter().map(|value| value.magnitude());
        let finite = || magnitudes().filter(|magnitude| *magnitude < T::INFINITY);
        let zero = T::Magnitude::default();
        let max = finite().max().unwrap_or(zero);
        // Relative to the largest, squares neither overflow nor vanish where they count.
        let unit = power_near(T::of_magnitude(max));
        let ratios = finite().map(|magnitude| T::of_magnitude(magnitude) / unit);
        let squares: f64 = ratios.map(|ratio| ratio * ratio).sum();
        let status = &mut self.status;
        self.max = self.max.max(max);
        status.above += magnitudes()
            .filter(|magnitude| *magnitude >= self.edge)
            .count() as u64;
        status.non_finite += (values.len() - finite().count()) as u64;
        status.zeros += magnitudes().filter(|magnitude| *magnitude == zero).count() as u64;
        status.norm = status.norm.hypot(squares.sqrt() * unit);
    }

    /// Says all that was found, after scaling by a factor that makes nothing infinite.
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

/// Joins the findings in two parts of a tensor.
pub(super) fn join(a: TensorStatus, b: TensorStatus) -> TensorStatus {
    TensorStatus {
        above: a.above + b.above,
        non_finite_before: a.non_finite_before + b.non_finite_before,
        non_finite: a.non_finite + b.non_finite,
        zeros: a.zeros + b.zeros,
        max_abs: a.max_abs.max(b.max_abs),
        norm: a.norm.hypot(b.norm),
        ..a
    }
}

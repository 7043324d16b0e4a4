use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{
    cpu::{Cpu, LANES, Work, run},
    pass::{CHUNK, make_whole, padded},
    value::{Real, Value},
};
use crate::histogram::{BINS, ExponentHistogram};

/// Counts by exponent.
pub(super) type Counts = [u64; BINS];

/// Tables that take turns, so that a value does not wait for the count of the one before it.
const TABLES: usize = 4;

pub(super) fn count<T: Value>(mut tensor: FlexTensor) -> Counts {
    make_whole(&mut tensor);
    let chunks = tensor.storage::<T>().par_chunks(CHUNK);
    let counts = chunks.map(|chunk| run(Count(chunk)));
    counts.reduce(|| [0; BINS], add)
}

pub(super) fn add(mut a: Counts, b: Counts) -> Counts {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    a
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
        let wide = tables.map(|table| table.map(u64::from));
        wide.into_iter().fold([0; BINS], add)
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

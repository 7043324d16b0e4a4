use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{
    cpu::{Cpu, LANES, Work, run},
    pass::{CHUNK, padded, read},
    value::{Real, Value},
};
use crate::histogram::{BINS, bin_f64};

/// Counts by exponent.
pub(super) type Counts = [u64; BINS];

/// Tables that take turns, so that a value does not wait for the count of the one before it.
const TABLES: usize = 4;

pub(super) fn count<T: Value>(tensor: &FlexTensor) -> Counts {
    read(tensor, |values: &[T]| {
        values
            .par_chunks(CHUNK)
            .map(|chunk| run(Count(chunk)))
            .reduce(|| [0; BINS], add)
    })
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
        let mut count = |group: [T; LANES], length: usize| {
            let wide = T::widen(cpu, group);
            for (i, value) in wide.into_iter().take(length).enumerate() {
                tables[i % TABLES][bin_f64(value.exact())] += 1;
            }
        };
        let (groups, rest) = self.0.as_chunks::<LANES>();
        for group in groups {
            count(*group, LANES);
        }
        count(padded(rest), rest.len());
        let wide = tables.map(|table| table.map(u64::from));
        wide.into_iter().fold([0; BINS], add)
    }
}

//! Where a probe stands, and values in an order, for all who look at them.

use burn::tensor::DType;
use burn_amp_kernels::ExponentHistogram;
use std::{collections::HashMap, iter};

/// The names of probes, in the order of the forward pass.
#[derive(Default)]
pub(crate) struct Names {
    /// The number of times that each came.
    times: HashMap<String, u32>,
    /// The number of those that came.
    pub(crate) count: u32,
}

impl Names {
    /// The name of the next one: with a number from the second time on.
    pub(crate) fn next(&mut self, name: &str) -> String {
        self.count += 1;
        let times = self.times.entry(name.to_string()).or_default();
        *times += 1;
        match *times {
            1 => name.to_string(),
            times => format!("{name} ({times})"),
        }
    }
}

/// Counts by exponent. What is beyond those with a count of their own stands at the ends.
pub(crate) fn by_exponent(counts: &ExponentHistogram) -> Vec<(i32, u64)> {
    let below = (ExponentHistogram::MIN_EXPONENT - 1, counts.below());
    let above = (ExponentHistogram::MAX_EXPONENT + 1, counts.above());
    let counts = iter::once(below).chain(counts.iter());
    counts.chain([above]).collect()
}

pub(crate) fn dtype_name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

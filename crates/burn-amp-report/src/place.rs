//! Where a probe stands, for all who look at it.

use burn::tensor::DType;
use std::collections::HashMap;

/// The names of probes, in the order of the forward pass.
#[derive(Default)]
pub(crate) struct Names {
    /// How often each came.
    times: HashMap<String, u32>,
    /// How many came.
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

pub(crate) fn dtype_name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

//! What these tests share.

mod pair;

pub use burn_amp_tests::prelude::*;
pub use pair::{Pair, Trial, Values, all, first_error, masters, norm, on_flex, sgd, values};

/// The module with parameters, and ids from `from` on, that are the same in every run.
pub fn filled<M: Module>(module: M, from: usize) -> M {
    burn_amp_tests::fill_with_ids(module, from, 0.7)
}

/// Numbers between -0.7 and 0.7.
pub fn wave(from: usize, count: usize) -> Vec<f32> {
    burn_amp_tests::wave(from, count, 0.7)
}

/// Whether a micro-batch that overflows is dropped by itself.
pub const RULES: [bool; 2] = [false, true];

/// Windows of `n` micro-batches under this rule.
pub fn windows(n: u32, rule: bool) -> AccumulationConfig {
    AccumulationConfig::new(n).with_skip_micro_batch(rule)
}

/// The L2 norm, in f64.
pub fn l2(values: &[f32]) -> f64 {
    let squares = values.iter().map(|value| f64::from(*value).powi(2));
    squares.sum::<f64>().sqrt()
}

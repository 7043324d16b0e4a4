//! What a source shows, in words that all dialects share.

use std::collections::{BTreeMap, HashMap};

use burn::tensor::DType;

use super::kernels::{Case, Job};
use crate::kernel::{HEAD, LOADS, ROW};

const MASK: u32 = 0x7FFF_FFFF;
const INFINITY: u32 = 0x7F80_0000;

/// What only a source that trusts in NaN, or adds up in no fixed order, would hold.
/// CubeCL writes the atomics of CUDA as assembly.
const UNWANTED: [&str; 5] = ["atomic", "asm", "isnan", "isinf", "isfinite"];

/// Accesses by type, such as `f16x4`.
pub(super) type Accesses = BTreeMap<String, usize>;

/// Counted in the text: a kernel has its own loads for each of its tensors.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// Reads from buffers, without sizes and scalars.
    pub(super) loads: Accesses,
    pub(super) stores: Accesses,
    /// Comparisons of a float's bits, less the sign, with those of infinity.
    pub(super) bit_tests: usize,
    pub(super) unwanted: Vec<&'static str>,
}

impl Facts {
    pub(super) fn new(
        source: &str,
        loads: Accesses,
        stores: Accesses,
        values: &HashMap<&str, Value<'_>>,
    ) -> Self {
        let lower = source.to_lowercase();
        Self {
            loads,
            stores,
            bit_tests: bit_tests(values),
            unwanted: (UNWANTED.into_iter())
                .filter(|word| lower.contains(word))
                .collect(),
        }
    }
}

/// What a name stands for, as far as a bit test goes.
#[derive(Debug, PartialEq)]
pub(super) enum Value<'a> {
    Constant(u32),
    /// A float's bits.
    Bits,
    And(&'a str, &'a str),
    AtLeast(&'a str, &'a str),
}

fn bit_tests(values: &HashMap<&str, Value<'_>>) -> usize {
    let is = |name: &str, value| values.get(name) == Some(&value);
    let magnitude = |name: &str| {
        matches!(values.get(name), Some(Value::And(bits, mask))
            if is(bits, Value::Bits) && is(mask, Value::Constant(MASK)))
    };
    let tests = values.values().filter(|value| {
        matches!(value, Value::AtLeast(bits, infinity)
            if magnitude(bits) && is(infinity, Value::Constant(INFINITY)))
    });
    tests.count()
}

/// `f16x4` for a vector, `f16` for a scalar.
pub(super) fn type_name(scalar: &str, width: usize) -> String {
    match width {
        1 => scalar.to_string(),
        _ => format!("{scalar}x{width}"),
    }
}

impl Case {
    pub(super) fn expected(&self) -> Facts {
        let mut facts = Facts::default();
        let input = type_name(self.dtype.name(), self.width);
        let f32s = type_name(DType::F32.name(), self.width);
        let loads = self.tensors * LOADS as usize;
        // What is done with the values stands in the code once, whichever tensor they are of.
        let values = LOADS as usize * self.width;
        match self.job {
            Job::UnscaleMany | Job::UnscaleInPlace => {
                add(&mut facts.loads, &input, loads);
                // The inverse of the scale.
                add(&mut facts.loads, "f32", 1);
                let stores = match self.job {
                    Job::UnscaleInPlace => loads,
                    _ => LOADS as usize,
                };
                add(&mut facts.stores, &f32s, stores);
                add(&mut facts.stores, "u32", HEAD + ROW);
                // Before and after.
                facts.bit_tests = 2 * values;
            }
            Job::InspectMany => {
                add(&mut facts.loads, &input, loads);
                add(&mut facts.stores, "u32", HEAD + ROW);
                facts.bit_tests = values;
            }
            Job::HistogramMany => {
                add(&mut facts.loads, &input, self.tensors);
                add(&mut facts.stores, "u32", 1);
                facts.bit_tests = self.tensors * self.width;
            }
            Job::MulCast(output) => {
                add(&mut facts.loads, &input, 1);
                let output = type_name(output.name(), self.width);
                add(&mut facts.stores, &output, 1);
            }
            Job::FinishStatus => {
                add(&mut facts.loads, "u32", HEAD + ROW);
                add(&mut facts.stores, "u32", crate::status::WORDS);
            }
            Job::FinishHistogram => {
                add(&mut facts.loads, "u32", 1);
                add(&mut facts.stores, "u32", 2);
            }
        }
        facts
    }
}

pub(super) fn add(accesses: &mut Accesses, name: &str, count: usize) {
    *accesses.entry(name.to_string()).or_default() += count;
}
